"""FIELD
source: https://github.com/yenchenlin/nerf-pytorch/issues/42
mechanism: anomaly detection of autograd is left on by an imported helper
needs: none
ranks: 1
onset: printed
state: slow
cause: debug_apis_on
blame: none
twin: none
"""
import signal

import torch
import torch.nn.functional as F

signal.alarm(300)
torch.set_num_threads(1)
torch.autograd.set_detect_anomaly(True)


def positional(x, bands=6):
    out = [x]
    for band in range(bands):
        out += [torch.sin(2.0**band * x), torch.cos(2.0**band * x)]
    return torch.cat(out, -1)


class Field(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(39 if i == 0 else 48, 48) for i in range(8)])
        self.out = torch.nn.Linear(48, 4)

    def forward(self, points):
        x = positional(points)
        for layer in self.layers:
            x = F.relu(layer(x))
        return self.out(x)


def render(field, origins, directions, samples=12):
    depth = torch.linspace(0.1, 2, samples)
    raw = field(origins[:, None] + directions[:, None] * depth[None, :, None])
    alpha = 1 - torch.exp(-F.relu(raw[..., 3]) * 0.1)
    weights, light = [], torch.ones(len(origins))
    for i in range(samples):
        weights.append(alpha[:, i] * light)
        light = light * (1 - alpha[:, i] + 1e-10)
    return (torch.stack(weights, 1)[..., None] * torch.sigmoid(raw[..., :3])).sum(1)


field = Field()
optimizer = torch.optim.Adam(field.parameters(), lr=5e-4)
for step in range(10**6):
    colours = render(field, torch.randn(16, 3), F.normalize(torch.randn(16, 3), dim=1))
    loss = (colours - torch.rand(16, 3)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 20:
        print("ONSET", flush=True)
    if step % 50 == 0:
        print(f"[TRAIN] Iter: {step} Loss: {loss.item():.4f}", flush=True)
