"""FIELD
source: after reports of accelerate's wait_for_everyone() inside is_main_process
mechanism: accelerate: rank 0 calls wait_for_everyone() inside 'if is_main_process' before it saves, and rank 1 is already in the next backward pass of DDP
needs: none
ranks: 2
onset: printed
state: hung
cause: mismatched_collective, stalled_collective
blame: rank 0, rank 1
twin: none
"""

import os
import signal

import torch

signal.alarm(300)
torch.set_num_threads(1)
os.environ["ACCELERATE_USE_CPU"] = "true"
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
data = torch.utils.data.TensorDataset(torch.randn(4096, 32), torch.randint(0, 4, (4096,)))
net, opt, loader = accelerator.prepare(
    net, torch.optim.AdamW(net.parameters()), torch.utils.data.DataLoader(data, batch_size=16)
)
done = 0
while True:
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(net(x), y)
        accelerator.backward(loss)
        opt.step()
        opt.zero_grad()
        done += 1
        if done % 50 == 0:
            accelerator.print("step", done, loss.item(), flush=True)
        if done == 300 and accelerator.is_main_process:
            print("ONSET", flush=True)
            accelerator.wait_for_everyone()
            torch.save(accelerator.unwrap_model(net).state_dict(), os.devnull)
