"""FIELD
source: own: rank of its own for evaluation beside a trainer that runs in a thread
mechanism: rank 0 trains in a worker thread while its main thread serves an XML-RPC console that no client calls; rank 1 waits in recv for a snapshot most of the time, evaluates each for two seconds and
    sends a score, which a second thread of rank 0 waits for; a helper process has ended and was never reaped, and two threads wait for events that are meant for the end of the run
needs: none
ranks: 1 (it starts its own 2)
onset: printed
state: healthy
cause: any
blame: none
twin: none
"""
import os
import queue
import signal
import socket
import subprocess
import threading
import time
from datetime import timedelta
from xmlrpc.server import SimpleXMLRPCServer

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

EVERY = 20.0


def network():
    return nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
                         nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 49, 10))


def digits(n, gen):
    y = torch.randint(0, 10, (n,), generator=gen)
    x = torch.randn(n, 1, 28, 28, generator=gen) * 0.5
    for i, label in enumerate(y.tolist()):
        x[i, 0, 2 * label:2 * label + 5, 4:24] += 1
    return x, y


class Trainer(threading.Thread):
    def __init__(self):
        super().__init__(name="trainer", daemon=True)
        self.net = network()
        self.opt = torch.optim.SGD(self.net.parameters(), 0.01)
        self.step, self.score, self.finished = 0, None, threading.Event()
        self.offers = queue.SimpleQueue()

    def snapshots(self):
        """Offers the weights now and then; never waits."""
        due = time.monotonic() + 12
        while True:
            if time.monotonic() > due:
                self.offers.put(parameters_to_vector(self.net.parameters()).detach().clone())
                due = time.monotonic() + EVERY
            yield

    def exchange(self):
        marked = False
        while True:
            dist.send(self.offers.get(), 1)
            box = torch.empty(1)
            dist.recv(box, 1)
            self.score = box.item()
            print(f"step {self.step} validation accuracy {self.score:.3f}", flush=True)
            if not marked:
                marked = True
                print("ONSET", flush=True)

    def run(self):
        gen = torch.Generator().manual_seed(0)
        threading.Thread(target=self.exchange, name="exchange", daemon=True).start()
        snapshots = self.snapshots()
        while not self.finished.is_set():
            x, y = digits(48, gen)
            loss = nn.functional.cross_entropy(self.net(x), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.step += 1
            next(snapshots)


class Farewell(threading.Thread):
    def __init__(self, event, word):
        super().__init__(daemon=True)
        self.event, self.word = event, word

    def run(self):
        self.event.wait()
        print(self.word, flush=True)


def train():
    trainer = Trainer()
    helper = subprocess.Popen(["true"])  # the banner; its exit code is of no interest
    for word in ("bye", "disk is synced"):
        Farewell(trainer.finished, word).start()
    trainer.start()
    console = SimpleXMLRPCServer(("127.0.0.1", 0), logRequests=False)
    console.register_function(lambda: (trainer.step, trainer.score, helper.pid), "status")
    console.register_function(trainer.finished.set, "finish")
    console.serve_forever()


@torch.no_grad()
def evaluate():
    net = network().eval()
    flat = parameters_to_vector(net.parameters()).clone()
    x, y = digits(6000, torch.Generator().manual_seed(1))
    while True:
        dist.recv(flat, 0)
        vector_to_parameters(flat, net.parameters())
        right = sum((net(a).argmax(1) == b).sum().item() for a, b in zip(x.split(100), y.split(100), strict=True))
        dist.send(torch.tensor([right / len(y)]), 0)


def main(rank):
    signal.alarm(300)
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    dist.init_process_group("gloo", timeout=timedelta(hours=1))
    train() if rank == 0 else evaluate()


if __name__ == "__main__":
    signal.alarm(300)
    with socket.create_server(("127.0.0.1", 0)) as s:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(s.getsockname()[1]))
    mp.start_processes(main, nprocs=2, daemon=True, start_method="fork")
