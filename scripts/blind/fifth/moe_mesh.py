"""FIELD
source: own: "overlap" switch of a 2 x 2 mesh that orders the two reductions like a checkerboard to spread the traffic (kin of pytorch/pytorch#130102, hangs with subgroups)
mechanism: after warm-up ranks 0 and 3 reduce over dp, then tp, while ranks 1 and 2 reduce over tp, then dp: each rank waits in a subgroup for one that waits in the other subgroup, a cycle of four
needs: none
ranks: 1 (it starts its own 4)
onset: printed
state: hung
cause: mismatched_collective,wedged_collective,stalled_collective
blame: none
twin: none
"""
import os
import signal
import socket
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

WARMUP = 130


class Router(nn.Module):
    def __init__(self, d=48, experts=4):
        super().__init__()
        self.gate = nn.Linear(d, experts)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(d, 96), nn.GELU(), nn.Linear(96, d))
                                     for _ in range(experts))

    def forward(self, x):
        w = self.gate(x).softmax(-1)
        return sum(w[:, i:i + 1] * e(x) for i, e in enumerate(self.experts))


class Mesh:
    """Ranks as a square; every rank makes all groups, in the same order."""

    def __init__(self, rank, side=2):
        self.row, self.col = divmod(rank, side)
        self.groups = {}
        for i in range(side):
            tp = dist.new_group([i * side + k for k in range(side)])
            dp = dist.new_group([k * side + i for k in range(side)])
            if i == self.row:
                self.groups["tp"] = tp
            if i == self.col:
                self.groups["dp"] = dp

    def mean(self, axis, params):
        grads = [p.grad for p in params]
        flat = nn.utils.parameters_to_vector(grads)
        dist.all_reduce(flat, group=self.groups[axis])
        nn.utils.vector_to_parameters(flat / 2, grads)


class GradSync:
    def __init__(self, mesh, net):
        self.mesh = mesh
        self.parts = {"dp": list(net.experts.parameters()), "tp": list(net.gate.parameters())}
        self.spread = False

    def order(self):
        # checkerboard, so that the two axes are in use at the same time
        if self.spread and (self.mesh.row + self.mesh.col) % 2:
            return ("tp", "dp")
        return ("dp", "tp")

    def __call__(self):
        for axis in self.order():
            self.mesh.mean(axis, self.parts[axis])


def heartbeat(state, rank):
    while True:
        time.sleep(3)
        if rank == 0:
            print(f"[hb] step {state['step']} loss {state['loss']:.4f}", flush=True)


def main(rank, world):
    signal.alarm(300)
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world))
    dist.init_process_group("gloo", timeout=timedelta(minutes=20))
    torch.manual_seed(3)
    net = Router()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    sync = GradSync(Mesh(rank), net)
    state = {"step": 0, "loss": 0.0}
    threading.Thread(target=heartbeat, args=(state, rank), daemon=True).start()
    gen = torch.Generator().manual_seed(rank)
    for step in range(10**6):
        x = torch.randn(32, 48, generator=gen)
        time.sleep(0.03)
        loss = (net(x) - x.roll(1, -1)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        if step == WARMUP:
            sync.spread = True
            if rank == 0:
                print("warm-up over, spreading the reductions", flush=True)
                print("ONSET", flush=True)
        sync()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        state.update(step=step, loss=loss.item())


if __name__ == "__main__":
    signal.alarm(300)
    s = socket.create_server(("127.0.0.1", 0))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(s.getsockname()[1]))
    s.close()
    mp.spawn(main, (4,), nprocs=4, daemon=True)
