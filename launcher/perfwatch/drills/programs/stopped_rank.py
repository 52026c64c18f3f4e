"""Two ranks; somebody (a job script, a checkpointing tool) sends SIGSTOP to rank 1 and forgets about it."""

import os
import signal
import threading
import time

import ranks
import stage
import torch
import torch.distributed as dist


def forgetful_operator(victim):
    if os.fork() == 0:
        time.sleep(0.05)
        stage.onset(rank=1, stopped=victim)
        os.kill(victim, signal.SIGSTOP)
        os._exit(0)


def dots():
    while True:
        print(".", end="", flush=True)
        time.sleep(0.3)


conf = stage.arguments()
torch.set_num_threads(1)
device = ranks.join(conf)
ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(300, 300).to(device))
sgd = torch.optim.SGD(ddp.parameters(), lr=0.1)
if conf.strength == "masked":
    threading.Thread(target=dots, daemon=True).start()
for step in range(10**6):
    if step == conf.steps and dist.get_rank() == 1:
        forgetful_operator(os.getpid())
    sgd.zero_grad()
    ddp(torch.randn(100, 300, device=device)).pow(2).mean().backward()
    sgd.step()
