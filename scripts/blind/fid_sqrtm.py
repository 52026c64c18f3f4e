"""FIELD
source: mseitzer/pytorch-fid#83 (the matrix square root takes several minutes on the CPU)
mechanism: the Frechet distance at several feature layers needs an eigendecomposition of a 3840 x 3840 product each, one native call of a minute and more apiece
needs: cpu
ranks: 1
onset: printed
state: busy
cause: computing_on_host, evaluating
blame: none
twin: none
"""
import time

import torch
import torch.nn as nn

torch.set_num_threads(1)
FEATURES = 3840


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 256), nn.LeakyReLU(0.2), nn.Linear(256, 784), nn.Tanh())

    def forward(self, z):
        return self.net(z)


def statistics(features):
    mu = features.mean(0)
    centred = features - mu
    return mu, centred.T @ centred / (len(features) - 1)


def frechet_distance(mu1, sigma1, mu2, sigma2, eps=1e-6):
    offset = eps * torch.eye(len(sigma1), dtype=sigma1.dtype)
    values = torch.linalg.eig((sigma1 + offset) @ (sigma2 + offset))[0]
    trace_sqrt = values.sqrt().real.sum()
    return ((mu1 - mu2) ** 2).sum() + sigma1.trace() + sigma2.trace() - 2 * trace_sqrt


@torch.no_grad()
def fid_score(generator, real, layers):
    fake = generator(torch.randn(len(real), 64))
    scores, began = [], time.time()
    for layer in layers:
        f1 = torch.relu(real @ layer).double()
        f2 = torch.relu(fake @ layer).double()
        scores.append(frechet_distance(*statistics(f1), *statistics(f2)).item())
        if time.time() - began > 320:
            break
    return sum(scores) / len(scores)


def main():
    generator = Generator()
    critic = nn.Sequential(nn.Linear(784, 256), nn.LeakyReLU(0.2), nn.Linear(256, 1))
    opt_g = torch.optim.Adam(generator.parameters(), 2e-4, betas=(0.5, 0.9))
    opt_c = torch.optim.Adam(critic.parameters(), 2e-4, betas=(0.5, 0.9))
    real = torch.randn(4500, 784).tanh()
    for step in range(2001):
        x = real[torch.randint(0, len(real), (64,))]
        fake = generator(torch.randn(64, 64))
        loss_c = torch.relu(1 - critic(x)).mean() + torch.relu(1 + critic(fake.detach())).mean()
        opt_c.zero_grad()
        loss_c.backward()
        opt_c.step()
        loss_g = -critic(fake).mean()
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
        if step % 500 == 0:
            print(f"step {step} D {loss_c.item():.3f} G {loss_g.item():.3f}", flush=True)
        if step == 1000:
            print("ONSET", flush=True)
            layers = [torch.randn(784, FEATURES) / 28 for _ in range(16)]
            print(f"fid {fid_score(generator, real, layers):.2f}", flush=True)


if __name__ == "__main__":
    main()
