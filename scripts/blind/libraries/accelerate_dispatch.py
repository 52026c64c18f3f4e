"""FIELD
source: huggingface/accelerate#2162 and huggingface/transformers#24999 (an IterableDataset is read by process 0 alone, which sends each
    process its part of the batch)
mechanism: two ranks; the data set is an iterable whose augmentation in plain Python takes most of a step; rank 0 makes the samples of both
    ranks one after the other, and rank 1 waits for its part in a broadcast
needs: none
ranks: 2
onset: printed
state: slow
cause: serial_loading, starved_by_transforms, straggling_rank
blame: rank 0, __iter__ (scripts/blind/libraries/accelerate_dispatch.py), jitter (scripts/blind/libraries/accelerate_dispatch.py)
twin: accelerate_plain
"""

import random
import signal

signal.alarm(300)

import torch
from accelerate import Accelerator

torch.set_num_threads(1)


def jitter(row):
    shaken = [value + random.gauss(0, 0.01) for value in row]
    return sorted(shaken) if random.random() < 0.1 else shaken


class Signals(torch.utils.data.IterableDataset):
    def __iter__(self):
        while True:
            row = [random.random() for _ in range(4000)]
            yield torch.tensor(jitter(row)), int(row[0] > 0.5)


accelerator = Accelerator(cpu=True)
net = torch.nn.Sequential(torch.nn.Linear(4000, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
net, optimizer, loader = accelerator.prepare(
    net, torch.optim.AdamW(net.parameters(), 1e-3), torch.utils.data.DataLoader(Signals(), batch_size=16)
)
for step, (batch, labels) in enumerate(loader):
    loss = torch.nn.functional.cross_entropy(net(batch), labels)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    if step % 10 == 0:
        accelerator.print("step", step, loss.item(), flush=True)
    if step == 20 and accelerator.is_main_process:
        print("ONSET", flush=True)
