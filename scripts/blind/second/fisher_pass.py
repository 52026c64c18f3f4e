"""FIELD
source: https://github.com/stokesj/EWC/issues/1 (the Fisher information is computed with a loop over single examples after each task)
mechanism: between two tasks of continual learning the diagonal Fisher information is summed up, one sample at a time: forward and backward run, the optimizer does not, for some five minutes without a line of output
needs: cpu
ranks: 1
onset: printed
state: busy
cause: computing_on_host, evaluating
blame: none
twin: none
"""
import time
import torch, torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
FISHER_SECONDS = 340            # as many samples as fit into this

def batch(task, n, gen):
    x = torch.randn(n, 3, 24, 24, generator=gen)
    y = (x.mean((1, 2, 3)) * 40 + task).long().remainder(10)
    return x, y

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 24, 3, padding=1), nn.Conv2d(24, 48, 3, padding=1)
        self.fc1, self.fc2 = nn.Linear(48 * 36, 200), nn.Linear(200, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))

def fit(model, task, seconds, gen, anchor=None):
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    until, step = time.time() + seconds, 0
    while time.time() < until:
        x, y = batch(task, 32, gen)
        loss = F.cross_entropy(model(x), y)
        if anchor:
            loss = loss + 50 * sum((f * (p - q).pow(2)).sum() for p, (f, q) in zip(model.parameters(), anchor))
        opt.zero_grad(); loss.backward(); opt.step()
        if step % 20 == 0:
            print(f'task {task} step {step} loss {loss.item():.4f}', flush=True)
        step += 1

def fisher_diagonal(model, task, gen):
    total = [torch.zeros_like(p) for p in model.parameters()]
    seen, until = 0, time.time() + FISHER_SECONDS
    while time.time() < until:
        x, _ = batch(task, 1, gen)
        logp = F.log_softmax(model(x), -1)
        label = torch.multinomial(logp.exp(), 1).squeeze(1)
        model.zero_grad()
        F.nll_loss(logp, label).backward()
        for acc, p in zip(total, model.parameters()):
            acc.addcmul_(p.grad, p.grad)
        seen += 1
    print(f'fisher over {seen} samples', flush=True)
    return [(acc / seen, p.detach().clone()) for acc, p in zip(total, model.parameters())]

def main():
    gen = torch.Generator().manual_seed(1)
    model = Net()
    fit(model, 0, 10, gen)
    print('ONSET', flush=True)
    anchor = fisher_diagonal(model, 0, gen)
    fit(model, 1, 60, gen, anchor)

if __name__ == '__main__':
    main()
