"""FIELD
source: ultralytics/yolov5#5160, tatsu-lab/stanford_alpaca#113 (the tracker of a distributed run asks "Enter your choice")
mechanism: the tracker's session expires and its client asks on the terminal what to do; rank 0 reads stdin, rank 1 is already
    in the next all_reduce
needs: none
ranks: 1 (it starts its own 2)
onset: printed
state: hung
cause: waiting_for_input
blame: rank 0
twin: none
"""

import os
import pty
import signal
import socket
import subprocess
import sys
import time


class Tracker:
    """A client whose token is good for a while."""

    MENU = "(1) renew the session\n(2) use another account\n(3) go on without tracking\nEnter your choice: "

    def __init__(self, lifetime):
        self.expires = time.time() + lifetime
        self.enabled = True
        self.rows = []

    def log(self, **row):
        if not self.enabled:
            return
        if time.time() > self.expires:
            self.login()
        self.rows.append(row)

    def login(self):
        print("tracker: the session has expired", flush=True)
        print("ONSET", flush=True)
        choice = input(self.MENU)
        self.enabled = choice.strip() != "3"
        self.expires = time.time() + 3600


def rank_main(rank, port):
    import torch
    import torch.distributed as dist
    from torch import nn

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    model = nn.parallel.DistributedDataParallel(
        nn.Sequential(nn.Conv1d(4, 32, 7, 2), nn.ReLU(), nn.Conv1d(32, 32, 5, 2), nn.ReLU(), nn.Flatten(), nn.Linear(928, 6))
    )
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    tracker = Tracker(15) if rank == 0 else None
    for step in range(10_000_000):
        x, y = torch.randn(48, 4, 128), torch.randint(6, (48,))
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if tracker and step % 20 == 0:
            tracker.log(step=step, loss=loss.item())
            if step % 200 == 0:
                print(f"step {step} loss {loss.item():.3f}", flush=True)


def launch():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    _screen, terminal = pty.openpty()  # as in an ssh session that is left open
    ranks = [
        subprocess.Popen([sys.executable, os.path.abspath(__file__), str(rank), str(port)], stdin=terminal)
        for rank in range(2)
    ]
    for process in ranks:
        process.wait()


if __name__ == "__main__":
    signal.alarm(300)
    if len(sys.argv) == 3:
        rank_main(int(sys.argv[1]), int(sys.argv[2]))
    else:
        launch()
