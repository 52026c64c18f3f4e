"""FIELD
source: NVIDIA/multi-storage-client#178, log2timeline/plaso#399 (the feeder thread of a multiprocessing.Queue at exit)
mechanism: rank 0 hands its records to a writer process through a multiprocessing.Queue; the writer ends at the row limit of
    its sheet, the records of the last epochs stay in the pipe and the buffer, and at exit rank 0 joins the feeder thread
    that cannot get rid of them; rank 1 has ended
needs: none
ranks: 1 (it starts its own 2)
onset: printed
state: hung
cause: hung_at_exit, blocked_pipe, dead_worker
blame: rank 0
twin: none
"""
import csv
import ctypes
import multiprocessing as mp
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LIMIT = 100  # rows that the sheet of the shop may have


def sheet(queue, path):
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    signal.alarm(300)
    with open(path, "w", newline="") as out:
        table = csv.writer(out)
        for _ in range(LIMIT):
            table.writerow(queue.get())


def sales(generator):
    day = torch.rand(32, 30, 7, generator=generator)
    return day, (day[:, -7:].mean((1, 2), keepdim=True)[:, 0] * 3).sin()


class Forecast(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(7, 64, batch_first=True)
        self.out = nn.Linear(64, 1)

    def forward(self, days):
        return self.out(self.rnn(days)[0][:, -1])


def work(rank):
    signal.alarm(300)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(Forecast())
    optimizer = torch.optim.RMSprop(model.parameters(), 1e-3)
    if rank == 0:
        records = mp.get_context("fork").Queue()
        path = os.path.join(tempfile.mkdtemp(prefix="report_"), "sheet.csv")
        mp.get_context("fork").Process(target=sheet, args=(records, path), daemon=True).start()
    generator, born, step = torch.Generator().manual_seed(rank), time.monotonic(), 0
    while True:
        days, target = sales(generator)
        forecast = model(days)
        loss = nn.functional.l1_loss(forecast, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if rank == 0:
            records.put([step, loss.item(), *forecast.flatten().tolist(), *target.flatten().tolist()])
            if step % 25 == 0:
                print(f"step {step} loss {loss.item():.4f}", flush=True)
        over = torch.tensor([float(time.monotonic() - born > 20 and step > LIMIT + 200)])
        dist.broadcast(over, 0)
        if over.item():
            break
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        print("done; the report is in", path, flush=True)
        print("ONSET", flush=True)


def launch():
    signal.alarm(300)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    ranks = [subprocess.Popen([sys.executable, __file__], env={**shared, "RANK": str(r), "LOCAL_RANK": str(r)}) for r in range(2)]
    sys.exit(max(child.wait() for child in ranks))


if __name__ == "__main__":
    work(int(os.environ["RANK"])) if "RANK" in os.environ else launch()
