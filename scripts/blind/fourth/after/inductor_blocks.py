"""FIELD
source: own (many different blocks are compiled by inductor before training goes on)
mechanism: torch.compile compiles thirty blocks of different widths with inductor and g++, one after the other
needs: none
ranks: 1
onset: printed
state: busy
cause: compiling
blame: none
twin: none
"""

import signal

import torch

signal.alarm(300)
torch.set_num_threads(1)
torch._inductor.config.fx_graph_cache = False


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a, self.b = torch.nn.Linear(width, 2 * width), torch.nn.Linear(2 * width, width)
        self.norm = torch.nn.LayerNorm(width)

    def forward(self, x):
        return x + self.b(torch.nn.functional.gelu(self.a(self.norm(x)))).tanh().softmax(-1)


def train(net, width, steps):
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(steps):
        loss = net(torch.randn(16, width)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


print("warm", train(Block(32), 32, 300), flush=True)
print("ONSET", flush=True)
for i in range(30):
    width = 24 + 8 * i
    print("block", width, train(torch.compile(Block(width)), width, 3), flush=True)
while True:
    print("go", train(Block(64), 64, 1000), flush=True)
