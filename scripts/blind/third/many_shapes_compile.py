"""FIELD
source: own
mechanism: a training script compiles sixty different blocks with torch.compile one after the other before it trains, a few seconds each
needs: none
ranks: 1
onset: printed
state: busy
cause: compiling
blame: none
twin: none
"""
import signal
import tempfile
import os

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"

import torch

signal.alarm(300)
torch.set_num_threads(1)
torch._dynamo.config.cache_size_limit = 128


def make_block(i):
    width = 32 + 8 * i
    lin1, lin2 = torch.nn.Linear(width, 2 * width), torch.nn.Linear(2 * width, width)
    norm = torch.nn.LayerNorm(width)

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lin1, self.lin2, self.norm = lin1, lin2, norm

        def forward(self, x):
            h = torch.nn.functional.gelu(self.lin1(self.norm(x)))
            for k in range(1 + i % 5):
                h = torch.sin(h) * torch.sigmoid(h - k) + torch.cos(h).cumsum(-1) * 1e-3
            return x + self.lin2(h).softmax(-1)

    return Block(), width


print("ONSET", flush=True)
blocks = []
for i in range(60):
    block, width = make_block(i)
    compiled = torch.compile(block)
    compiled(torch.randn(4, width)).sum().backward()
    blocks.append((compiled, block, width))
    print("compiled block", i, flush=True)
optimizer = torch.optim.SGD([p for _, b, _ in blocks for p in b.parameters()], lr=1e-3)
while True:
    loss = sum(c(torch.randn(4, w)).square().mean() for c, _, w in blocks)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
