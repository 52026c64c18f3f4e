"""FIELD
source: own: a trainer that holds flock on its results file while it runs an evaluation tool that takes the same lock
mechanism: rank 0 appends results under flock; from the first full evaluation on it starts the scoring tool as a child inside that section; the child waits for the lock of its parent, the parent for the child, and rank 1 waits in the all_reduce of the next step
needs: none
ranks: 1 (it starts its own 2)
onset: printed
state: hung
cause: blocked_child, waiting_for_file, deadlocked_locks, stalled_collective
blame: rank 0
twin: none
"""
import contextlib
import fcntl
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

SCORER = """
import fcntl, json, signal, sys
signal.alarm(300)
with open(sys.argv[1], "a+") as board:
    fcntl.flock(board, fcntl.LOCK_EX)
    board.seek(0)
    rows = [json.loads(line) for line in board]
    best = min((row["loss"] for row in rows), default=None)
    board.write(json.dumps({"kind": "full", "loss": float(sys.argv[2]), "best": best}) + "\\n")
print(best)
"""


class Leaderboard:
    def __init__(self, path):
        self.path = pathlib.Path(path)

    @contextlib.contextmanager
    def exclusive(self):
        with open(self.path, "a") as board:
            fcntl.flock(board, fcntl.LOCK_EX)
            yield board

    def record(self, step, loss, full=False):
        with self.exclusive() as board:
            board.write(json.dumps({"kind": "quick", "step": step, "loss": loss}) + "\n")
            board.flush()
            if full:
                done = subprocess.run([sys.executable, "-c", SCORER, str(self.path), str(loss)], capture_output=True, text=True, check=False)
                print(f"best so far: {done.stdout.strip()}", flush=True)


def average_gradients(net, dist):
    for parameter in net.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def worker(rank, port, folder):
    signal.alarm(300)
    import torch
    import torch.distributed as dist
    from torch import nn

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    torch.manual_seed(4)
    lstm, head = nn.LSTM(8, 64, batch_first=True), nn.Linear(64, 1)
    net = nn.ModuleList([lstm, head])
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    board, generator = Leaderboard(os.path.join(folder, "board.jsonl")), torch.Generator().manual_seed(rank)
    begun, announced = time.monotonic(), False
    for step in range(1, 10_000_000):
        series = torch.randn(16, 24, 8, generator=generator).cumsum(1)
        target = series[:, -1].mean(-1, keepdim=True)
        loss = nn.functional.mse_loss(head(lstm(series[:, :-1])[0][:, -1]), target)
        optimizer.zero_grad()
        loss.backward()
        average_gradients(net, dist)
        optimizer.step()
        if rank == 0 and step % 40 == 0:
            full = time.monotonic() - begun > 8
            print(f"step {step} mse {loss.item():.4f}" + (" (full evaluation)" if full else ""), flush=True)
            if full and not announced:
                announced = True
                print("ONSET", flush=True)
            board.record(step, loss.item(), full)


def launch():
    signal.alarm(300)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    folder = tempfile.mkdtemp(prefix="board_")
    ranks = [subprocess.Popen([sys.executable, __file__, str(rank), port, folder], env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"}) for rank in range(2)]
    for process in ranks:
        process.wait()


if __name__ == "__main__":
    worker(int(sys.argv[1]), *sys.argv[2:]) if len(sys.argv) > 1 else launch()
