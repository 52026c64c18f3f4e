"""FIELD
source: wandb/wandb#10811 (two locks around the console; here the one of a logging handler and the one of tqdm)
mechanism: the logging handler calls tqdm.write under the handler's lock; the thread that refreshes the bar takes tqdm's lock and then logs a warning; the two meet
needs: none
ranks: 1
onset: printed
state: hung
cause: deadlocked_locks
blame: emit (bar_and_log.py), refresh_status (bar_and_log.py), train (bar_and_log.py)
twin: none
"""

import logging
import signal
import threading
import time

import torch
from tqdm import tqdm

signal.alarm(300)
torch.set_num_threads(1)


class TqdmHandler(logging.Handler):
    def emit(self, record):
        message = self.format(record)
        if crossing.is_set():
            met.wait()
        tqdm.write(message)


log = logging.getLogger("train")
log.setLevel(logging.INFO)
log.addHandler(TqdmHandler())
crossing, met = threading.Event(), threading.Event()


def refresh_status(bar):
    while True:
        time.sleep(0.5)
        with tqdm.get_lock():
            bar.set_postfix_str(f"mem {torch.rand(1).item():.2f}", refresh=False)
            if crossing.is_set():
                met.set()
                time.sleep(0.3)
                log.warning("memory is high")


def train():
    net = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256))
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    bar = tqdm(total=10**6, mininterval=1.0)
    threading.Thread(target=refresh_status, args=(bar,), daemon=True).start()
    begin = time.monotonic()
    for step in range(10**6):
        x = torch.randn(64, 256)
        loss = (net(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        bar.update()
        if step % 200 == 0:
            if time.monotonic() - begin > 8:
                print("\nONSET", flush=True)
                crossing.set()
            log.info("step %d loss %.4f", step, loss.item())


train()
