"""FIELD
source: wandb/wandb#3010 (an agent that runs one trial after the other in processes of their own)
mechanism: the agent starts each trial as a child process and waits for its end, reads its score from a file, and starts the next; each trial trains for twenty-five seconds
needs: none
ranks: 1
onset: printed
state: busy, healthy
cause: waiting_on_work, cpu_training, balanced
blame: none
twin: none
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

import torch

signal.alarm(300)
torch.set_num_threads(1)


def trial(lr, width, out):
    net = torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, 1))
    opt = torch.optim.SGD(net.parameters(), lr=lr)
    end = time.monotonic() + 25
    while time.monotonic() < end:
        x = torch.randn(256, 64)
        loss = (net(x).squeeze(1) - x.prod(1)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    with open(out, "w") as file:
        json.dump({"loss": loss.item()}, file)


def agent():
    folder = tempfile.mkdtemp()
    best = float("inf")
    for number in range(10**6):
        out = os.path.join(folder, f"{number}.json")
        lr, width = 10 ** random.uniform(-4, -1), random.choice([64, 128, 256])
        with open(os.path.join(folder, f"{number}.log"), "w") as log:
            code = subprocess.call([sys.executable, __file__, str(lr), str(width), out], stdout=log, stderr=log)
        if code == 0:
            with open(out) as file:
                best = min(best, json.load(file)["loss"])
        print("trial", number, "best", best, flush=True)
        if number == 0:
            print("ONSET", flush=True)


if len(sys.argv) > 1:
    trial(float(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
else:
    agent()
