"""FIELD
source: pytorch/pytorch#22535, #82219 and transferable-samplers PR 12 (each loader worker takes as many threads as it pleases)
mechanism: four workers set 8 intra-op threads each for their matrix products "to be faster", and the trainer uses 8 itself; two cores carry all of it
needs: none
ranks: 1
onset: printed
state: slow
cause: oversubscribed_threads, starved_by_transforms
blame: none
twin: none
"""

import signal

import torch
from torch.utils.data import DataLoader, IterableDataset

signal.alarm(300)
torch.set_num_threads(8)


class Flows(IterableDataset):
    def __iter__(self):
        signal.alarm(300)
        torch.set_num_threads(8)
        mix = torch.randn(700, 700)
        while True:
            x = torch.randn(700, 700)
            for _ in range(3):
                x = torch.tanh(x @ mix / 26)
            yield x[:64, :256].clone()


if __name__ == "__main__":
    loader = DataLoader(Flows(), batch_size=None, num_workers=4, multiprocessing_context="spawn")
    flow = torch.nn.Sequential(*[layer for _ in range(3) for layer in (torch.nn.Linear(256, 256), torch.nn.Tanh())])
    opt = torch.optim.Adam(flow.parameters())
    for step, x in enumerate(loader):
        loss = (flow(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step == 20:
            print("ONSET", flush=True)
        if step % 20 == 0:
            print("iteration", step, loss.item(), flush=True)
