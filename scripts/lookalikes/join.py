"""A small regression run that hands side work to a thread and waits with Thread.join until that thread has returned.

The word on the command line picks the side work: a checkpoint, a report, labels, a spectrum, a prefetch or an average.
"""

import hashlib
import json
import logging
import os
import queue
import socket
import tempfile
import threading
import time

import numpy as np
import torch
from common import condition, onset, outsider, train

log = logging.getLogger("train")


class CheckpointWriter(threading.Thread):
    def __init__(self, model, seconds):
        super().__init__(name="checkpoint")
        self.state = {name: value.clone() for name, value in model.state_dict().items()}
        self.seconds = seconds
        self.digests = []

    def run(self):
        end = time.monotonic() + self.seconds
        while time.monotonic() < end:
            with tempfile.TemporaryFile() as file:
                torch.save(self.state, file)
                file.seek(0)
                self.digests.append(hashlib.sha256(file.read()).hexdigest())
            for value in self.state.values():
                value.mul_(0.999)


def save_and_exit():
    model, step = train()
    writer = CheckpointWriter(model, seconds=150)
    writer.start()
    onset()
    writer.join()
    print(len(writer.digests), step())


def report_epoch():
    _, step = train()
    payload = json.dumps({"loss": [step() for _ in range(3)]}).encode()

    def push_metrics(attempts, retry_after):
        for _ in range(attempts):
            try:
                with socket.create_connection(("127.0.0.1", 9), timeout=1) as connection:
                    return connection.sendall(payload)
            except OSError as error:
                log.warning("metrics: %s, again in %d s", error, retry_after)
                time.sleep(retry_after)

    pusher = threading.Thread(target=push_metrics, args=(1, 120))
    pusher.start()
    onset()
    pusher.join()
    step()


def train_on_labels():
    receiver, sender = os.pipe()

    def label_windows():
        end = time.monotonic() + 180
        while time.monotonic() < end:
            _, _, axes = torch.linalg.svd(torch.randn(512, 128), full_matrices=False)
        os.write(sender, axes[0].sign().char().numpy().tobytes())

    labels = []

    def receive():
        labels.append(np.frombuffer(os.read(receiver, 128), dtype=np.int8))

    outsider(label_windows)
    os.close(sender)
    _, step = train()
    feed = threading.Thread(target=receive, name="labels", daemon=True)
    feed.start()
    onset()
    feed.join()
    print(labels[0].sum(), step())


class Spectrum:
    def __init__(self, samples):
        self.signal = np.random.default_rng(1).integers(-999, 999, samples, dtype="int32")
        self.lags = None

    def autocorrelate(self):
        self.lags = np.correlate(self.signal, self.signal, "full")

    def wait(self, thread):
        onset()
        thread.join()
        return float(self.lags.max())


def analyse_audio():
    _, step = train()
    spectrum = Spectrum(samples=800_000)
    analysis = threading.Thread(target=spectrum.autocorrelate)
    analysis.start()
    print(spectrum.wait(analysis), step())


class Prefetcher:
    def __init__(self, paths):
        self.paths, self.shards, self.epoch = paths, [], None
        self.loaded = threading.Event()
        self.reader = threading.Thread(target=self._read, name="reader")
        self.collator = threading.Thread(target=self._collate, name="collator")

    def _read(self):
        try:
            self.shards = [torch.load(path) for path in self.paths]
            self.loaded.set()
        except OSError as error:
            log.warning("prefetch: %s", error)

    def _collate(self):
        self.loaded.wait()
        self.epoch = torch.cat(self.shards)


def next_epoch():
    prefetcher = Prefetcher([os.path.join(tempfile.gettempdir(), "no-such-run", "shard-0.pt")])
    prefetcher.reader.start()
    _, step = train()
    prefetcher.collator.start()
    onset()
    prefetcher.collator.join()
    step(prefetcher.epoch)


class WeightAverage:
    def __init__(self, model):
        self.weight, self.mean = model[0].weight, None
        self.lock, self.stop, self.copies = threading.Lock(), threading.Event(), queue.Queue()
        self.copier, self.folder = threading.Thread(target=self._copy), threading.Thread(target=self._fold)
        self.copier.start()
        self.folder.start()

    def _copy(self):
        while not self.stop.wait(0.05):
            with self.lock:
                self.copies.put(self.weight.detach().clone())
        with self.lock:
            self.copies.put(self.weight.detach().clone())
        self.copies.put(None)

    def _fold(self):
        while (copy := self.copies.get()) is not None:
            self.mean = copy if self.mean is None else self.mean.lerp(copy, 0.1)

    def finish(self):
        with self.lock:
            self.stop.set()
            onset()
            self.folder.join()
            self.weight.data.copy_(self.mean)


def train_averaged():
    model, step = train()
    average = WeightAverage(model)
    for _ in range(5):
        with average.lock:
            step()
        time.sleep(0.03)
    average.finish()


RUNS = {
    "works": save_and_exit,
    "sleeps": report_epoch,
    "outside": train_on_labels,
    "native": analyse_audio,
    "gone": next_epoch,
    "cycle": train_averaged,
}

if __name__ == "__main__":
    RUNS[condition()]()
