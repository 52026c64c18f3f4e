"""A training program that waits for a pipe: a loss, a rate, a collector, a frame or a batch."""

import ctypes
import io
import multiprocessing
import os
import subprocess
import tempfile
import threading
import time

import numpy as np
import torch
from common import condition, onset, outsider, train

DECODER = r"""
#include <pthread.h>
#include <time.h>
#include <unistd.h>
static int sink;
static void *decode(void *unused) {
    unsigned long pixel = 1;
    for (time_t end = time(0) + 160; time(0) < end;)
        for (int i = 0; i < 100000000; i++) pixel = pixel * 6364136223846793005UL + i;
    return write(sink, &pixel, sizeof pixel) == sizeof pixel ? unused : 0;
}
int start_decoder(int descriptor) {
    pthread_t thread;
    sink = descriptor;
    return pthread_create(&thread, 0, decode, 0);
}
"""


def evaluate(model, results):
    losses, end = [], time.monotonic() + 150
    while time.monotonic() < end:
        with torch.no_grad():
            losses.append(model(torch.randn(512, 256)).square().mean().item())
    results.send(sum(losses) / len(losses))


def train_and_evaluate():
    model, step = train()
    reader, writer = multiprocessing.Pipe(duplex=False)
    with writer:
        multiprocessing.Process(target=evaluate, args=(model, writer), daemon=True).start()
    step()
    onset()
    print("validation loss", reader.recv())


class RateSchedule(threading.Thread):
    """Hands the next learning rate to the training once every two minutes."""

    def __init__(self):
        super().__init__(name="rate-schedule", daemon=True)
        self.reader, self.writer = os.pipe()
        self.closing = threading.Event()

    def run(self):
        while not self.closing.wait(timeout=120):
            os.write(self.writer, b"0.0003\n")

    def next_rate(self):
        with open(self.reader) as rates:
            onset()
            return float(rates.readline())


def train_on_schedule():
    _, step = train()
    schedule = RateSchedule()
    schedule.start()
    step()
    print("rate", schedule.next_rate())
    schedule.closing.set()


def collect_weights(path):
    with open(path, "rb") as weights:
        end = time.monotonic() + 155
        while time.monotonic() < end:
            np.sort(np.random.default_rng().normal(size=300_000))
        weights.read()


def train_and_export():
    path = os.path.join(tempfile.mkdtemp(), "weights")
    os.mkfifo(path)
    outsider(lambda: collect_weights(path))
    model, step = train()
    torch.save(model.state_dict(), weights := io.BytesIO())
    with open(path, "wb") as collector:
        os.unlink(path)
        os.rmdir(os.path.dirname(path))
        onset()
        collector.write(weights.getbuffer())
    step()


def load_decoder():
    with tempfile.TemporaryDirectory() as folder:
        library = os.path.join(folder, "decoder.so")
        command = ["cc", "-O1", "-shared", "-fPIC", "-pthread", "-x", "c", "-", "-o", library]
        subprocess.run(command, input=DECODER, text=True, check=True)
        return ctypes.CDLL(library)


def train_on_decoded():
    decoder = load_decoder()
    _, step = train()
    frames, sink = os.pipe()
    if decoder.start_decoder(sink) != 0:
        raise OSError("no decoder")
    step()

    def next_frame():
        onset()
        return os.read(frames, 8)

    print("frame", next_frame().hex())


def read_shards(batches, paths):
    for path in paths:
        batches.send(np.zeros((512, 256), np.float32) if path is None else np.load(path))


class ShardLoader:
    def __init__(self, paths):
        self.batches, self.writer = multiprocessing.Pipe(duplex=False)
        self.worker = multiprocessing.Process(target=read_shards, args=(self.writer, paths), daemon=True)
        self.worker.start()

    def next_batch(self):
        return torch.from_numpy(self.batches.recv())


def train_on_shards():
    loader = ShardLoader([None, os.path.join(tempfile.gettempdir(), "no-such-folder", "shard-1.npy")])
    first = loader.next_batch()
    _, step = train()
    step(first)
    onset()
    step(loader.next_batch())


def augment(batches, views):
    while True:
        batch = batches.recv()
        for shift in range(4):
            views.send(np.roll(batch, shift, axis=1))


def train_on_views(count=8):
    batch_reader, batch_writer = multiprocessing.Pipe(duplex=False)
    view_reader, view_writer = multiprocessing.Pipe(duplex=False)
    multiprocessing.Process(target=augment, args=(batch_reader, view_writer), daemon=True).start()
    batch_reader.close()
    view_writer.close()
    _, step = train()
    batches = np.random.default_rng().normal(size=(count, 512, 256)).astype(np.float32)
    onset()
    for batch in batches:
        batch_writer.send(batch)
    for _ in range(4 * count):
        step(torch.from_numpy(view_reader.recv()))


if __name__ == "__main__":
    {
        "works": train_and_evaluate,
        "sleeps": train_on_schedule,
        "outside": train_and_export,
        "native": train_on_decoded,
        "gone": train_on_shards,
        "cycle": train_on_views,
    }[condition()]()
