"""FIELD
source: pytorch/pytorch#2759 and pytorch/vision#5985 (variable input sizes with cudnn.benchmark=True are slow)
mechanism: cudnn.benchmark is on and almost every batch has a new height and width, so each step measures the algorithms of all convolutions anew
needs: gpu
ranks: 1
onset: printed
state: slow
cause: autotuning
blame: none
twin: none
"""
import os, random, time
import torch, torch.nn as nn, torch.nn.functional as F

torch.set_num_threads(1)
torch.backends.cudnn.benchmark = True
torch.backends.cudnn.benchmark_limit = 0
cpu = os.environ.get('FIELD_CPU') == '1'
device = 'cpu' if cpu else 'cuda'
c, low, high, batch = (8, 24, 48, 2) if cpu else (96, 192, 640, 8)


class Residual(nn.Module):
    def __init__(self, a, b, stride):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(), nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b))
        self.skip = nn.Conv2d(a, b, 1, stride, bias=False)

    def forward(self, x):
        return F.relu(self.body(x) + self.skip(x))


detector = nn.Sequential(nn.Conv2d(3, c, 7, 2, 3), nn.ReLU(), Residual(c, c, 1), Residual(c, 2 * c, 2), Residual(2 * c, 2 * c, 1), Residual(2 * c, 4 * c, 2),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * c, 20)).to(device)
opt = torch.optim.SGD(detector.parameters(), lr=0.01, momentum=0.9)
rng = random.Random(3)
start, announced = time.time(), False
for step in range(10**8):
    elapsed = time.time() - start
    if elapsed > 850: break
    if elapsed < 8:                                             # one scale for the first part of the training
        h = w = (low + high) // 2
    else:
        h, w = rng.randint(low, high), rng.randint(low, high)
        if not announced: announced = True; print('multi-scale from here\nONSET', flush=True)
    images, labels = torch.randn(batch, 3, h, w, device=device), torch.randint(0, 20, (batch,), device=device)
    loss = F.cross_entropy(detector(images), labels)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 25 == 0: print(f'step {step} {h}x{w} loss {loss.item():.4f}', flush=True)
