"""FIELD
source: fishaudio/fish-speech#1227 and tsiendragon/qwen-image-finetune#39 (with gradient accumulation the bar seems to stand still)
mechanism: two ranks accumulate 96 micro-batches for each optimizer step under no_sync of DDP; an optimizer step takes some ten seconds, and nothing else is wrong
needs: none
ranks: 2
onset: printed
state: healthy
cause: cpu_training, balanced
blame: none
twin: none
"""

import contextlib
import datetime
import signal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

signal.alarm(300)
torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=30))
rank = dist.get_rank()
block = torch.nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
net = DistributedDataParallel(
    torch.nn.Sequential(
        torch.nn.Embedding(2000, 128), torch.nn.TransformerEncoder(block, 3), torch.nn.Linear(128, 2000)
    )
)
opt = torch.optim.AdamW(net.parameters(), lr=3e-4)
EVERY = 96
micro = 0
while True:
    opt.zero_grad()
    for number in range(EVERY):
        ids = torch.randint(0, 2000, (4, 64))
        with contextlib.nullcontext() if number == EVERY - 1 else net.no_sync():
            loss = torch.nn.functional.cross_entropy(net(ids).flatten(0, 1), ids.flatten()) / EVERY
            loss.backward()
        micro += 1
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    if rank == 0:
        print("optimizer step", micro // EVERY, loss.item() * EVERY, flush=True)
        if micro == EVERY:
            print("ONSET", flush=True)
