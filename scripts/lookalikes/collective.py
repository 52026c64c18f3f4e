"""Trains with two or three gloo ranks; after some steps, rank 0 enters a collective that another rank is to join."""

import ctypes
import logging
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing
from common import condition, onset, outsider, train

QUANTIZE = r"""
#include <time.h>
double quantize(double seconds) {
    volatile double error = 0;
    for (time_t end = time(0) + (time_t)seconds; time(0) < end;)
        for (int i = 1; i < 20000000; i++) error += 1.0 / i - (float)(1.0 / i);
    return error;
}
"""


def join(rank, size, method):
    dist.init_process_group("gloo", method, timeout=timedelta(minutes=30), rank=rank, world_size=size)
    model, step = train(20)
    for _ in range(5):
        step()
        for parameter in model.parameters():
            dist.all_reduce(parameter.data)
            parameter.data /= size
    return model, step


def free_address():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"tcp://127.0.0.1:{server.getsockname()[1]}"


def validate(model):
    end, losses = time.monotonic() + 180, []
    while time.monotonic() < end:
        with torch.no_grad():
            losses.append(model(torch.randn(2_048, 256)).square().mean())
    return torch.stack(losses).mean()


def run_rank(rank, method):
    model, step = join(rank, 2, method)
    if rank == 0:
        loss = torch.tensor(step() + step() + step())
        onset()
    else:
        loss = validate(model)
    dist.all_reduce(loss)
    print(rank, loss.item(), step())


def spawn_ranks():
    torch.multiprocessing.spawn(run_rank, args=(free_address(),), nprocs=2)


class Replica:
    def __init__(self, rank):
        self.rank = rank
        self.model, self.step = join(rank, 2, "env://")

    def fetch_shard(self, attempts=3):
        for attempt in range(attempts):
            try:
                return Path(os.environ["SHARDS"], "shard-1.pt").read_bytes()
            except OSError as error:
                logging.warning("attempt %d: %s", attempt, error)
                time.sleep(130 if attempt == 0 else 10)

    def synchronize(self):
        dist.barrier()

    def fit(self):
        if self.rank == 0:
            sum(self.step() for _ in range(8))
            onset()
        else:
            self.fetch_shard()
        self.synchronize()
        self.step()


def launch_replicas():
    if rank := os.environ.get("RANK"):
        return Replica(int(rank)).fit()
    address, port = free_address().removeprefix("tcp://").split(":")
    environment = {**os.environ, "MASTER_ADDR": address, "MASTER_PORT": port, "WORLD_SIZE": "2", "SHARDS": "/data"}
    ranks = [subprocess.Popen([sys.executable, *sys.argv], env={**environment, "RANK": str(i)}) for i in range(2)]
    return [process.wait() for process in ranks]


def read_labels(fifo):
    with open(fifo, "rb") as labels:
        return torch.frombuffer(bytearray(labels.read(8 * 64)), dtype=torch.float64)


def share_labels(rank, method, fifo):
    _, step = join(rank, 2, method)
    if rank == 0:
        labels = torch.zeros(64, dtype=torch.float64)
        print([step() for _ in range(5)])
        onset()
    else:
        labels = read_labels(fifo)
    dist.broadcast(labels, src=1)
    print(rank, labels.mean(), step())


def train_on_labels():
    fifo = os.path.join(tempfile.mkdtemp(prefix="labels-"), "labels")
    os.mkfifo(fifo)

    def label_images():
        stream = os.open(fifo, os.O_RDWR)
        images, end = torch.randn(64, 3, 64, 64), time.monotonic() + 180
        network = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 5), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1))
        while time.monotonic() < end:
            labels = network(images).detach().sum((1, 2, 3))
        os.write(stream, labels.double().numpy().tobytes())
        time.sleep(60)

    outsider(label_images)
    method = free_address()
    multiprocessing.Process(target=share_labels, args=(1, method, fifo), daemon=True).start()
    share_labels(0, method, fifo)


def quantize_weights(library):
    function = ctypes.PyDLL(library).quantize
    function.restype, function.argtypes = ctypes.c_double, [ctypes.c_double]
    return function(180.0)


def compress_model(rank, method, library):
    model, step = join(rank, 3, method)
    error = torch.tensor(quantize_weights(library) if rank == 2 else 0.0, dtype=torch.float64)
    if rank == 0:
        step(), step(), step(), step()
        onset()
    dist.reduce(error, dst=0)
    print(rank, error, sum(parameter.numel() for parameter in model.parameters()))


def start_compression():
    folder = tempfile.mkdtemp(prefix="compress-")
    library = os.path.join(folder, "quantize.so")
    build = ["cc", "-O1", "-shared", "-fPIC", "-x", "c", "-", "-o", library]
    subprocess.run(build, input=QUANTIZE.encode(), check=True)
    context = torch.multiprocessing.get_context("fork")
    for rank in (2, 1, 0):
        context.Process(target=compress_model, args=(rank, f"file://{folder}/rendezvous", library)).start()


def write_heartbeat(path):
    while True:
        path.write_text(str(time.time()))
        time.sleep(5)


def run_epoch(rank, batches, step):
    for number in range(batches):
        step()
        if number % 4 == 3:
            if rank == 0 and number == batches - 1:
                onset()
            dist.barrier()


def train_uneven(rank, method):
    _, step = join(rank, 2, method)
    heartbeat = Path(tempfile.gettempdir(), f"heartbeat-{os.getpid()}-{rank}")
    threading.Thread(target=write_heartbeat, args=(heartbeat,)).start()
    run_epoch(rank, 12 if rank == 0 else 10, step)


def start_uneven():
    method = free_address()
    multiprocessing.Process(target=train_uneven, args=(1, method)).start()
    train_uneven(0, method)


def evaluate(inbox):
    state = inbox.get()
    return sum(value.abs().sum().item() for value in state.values())


def evaluate_on_last(rank, method, inbox):
    model, step = join(rank, 3, method)
    if rank == 2:
        print("score", evaluate(inbox))
    elif rank == 0:
        print("loss", max(step() for _ in range(6)))
        onset()
    dist.barrier()
    if rank == 0:
        inbox.put({name: value.detach() for name, value in model.state_dict().items()})


def start_evaluation():
    context, method = multiprocessing.get_context("spawn"), free_address()
    inbox = context.Queue()
    ranks = [context.Process(target=evaluate_on_last, args=(rank, method, inbox)) for rank in range(3)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()


if __name__ == "__main__":
    {
        "works": spawn_ranks,
        "sleeps": launch_replicas,
        "outside": train_on_labels,
        "native": start_compression,
        "gone": start_uneven,
        "cycle": start_evaluation,
    }[condition()]()
