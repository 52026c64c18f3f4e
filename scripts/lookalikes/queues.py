"""Training jobs whose training thread gets from or puts into a queue whose other end a thread or a process serves:
a featurizer, a micro-batcher, a tokenizer service, a database scan, decoders, a scoring stage."""

import multiprocessing
import queue
import sqlite3
import threading
import time

import numpy as np
import torch
from common import condition, onset, outsider, train

SCAN = """
WITH RECURSIVE samples(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM samples WHERE id < 1200000000)
SELECT sum(id * id % 7), count(*) FROM samples
"""


class Featurizer(multiprocessing.Process):
    def __init__(self):
        super().__init__(daemon=True)
        self.requests, self.features = multiprocessing.Queue(), multiprocessing.Queue()

    def run(self):
        for seed, seconds in iter(self.requests.get, None):
            self.features.put(self.embed(seed, time.monotonic() + seconds))

    def embed(self, seed, end):
        batch = np.random.default_rng(seed).standard_normal((512, 256))
        while time.monotonic() < end:
            batch = np.log1p(np.abs(np.fft.fft2(batch)))
        return batch.astype(np.float32)


def train_on_features():
    featurizer = Featurizer()
    featurizer.start()
    _, step = train()
    for seed, seconds in enumerate((0, 150)):
        featurizer.requests.put((seed, seconds))
        if seed:
            onset()
        step(torch.from_numpy(featurizer.features.get()))


class MicroBatcher:
    """Gathers samples until there are enough of them, or until no more came for a while."""

    def __init__(self, size, patience):
        self.size, self.patience = size, patience
        self.samples, self.batches = queue.Queue(), queue.Queue()
        threading.Thread(target=self.gather, name="micro-batcher", daemon=True).start()

    def gather(self):
        batch = [self.samples.get()]
        try:
            while len(batch) < self.size:
                batch.append(self.samples.get(timeout=self.patience))
        except queue.Empty:
            pass
        self.batches.put(torch.stack(batch))


def train_on_samples():
    _, step = train()
    batcher = MicroBatcher(size=512, patience=125)
    for _ in range(500):
        batcher.samples.put(torch.randn(256))
    step()
    onset()
    batch = batcher.batches.get()
    step(batch)


def train_on_tokens():
    tokens = multiprocessing.Queue(maxsize=4)

    def tokenize_documents():
        for seconds in (0, 160):
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                words = np.random.default_rng(3).integers(0, 50_000, 100_000).astype(str)
                np.unique(words)
            tokens.put(np.ones((512, 256), dtype=np.float32))
        tokens.close()
        tokens.join_thread()

    outsider(tokenize_documents)
    _, step = train()
    step(torch.from_numpy(tokens.get()))
    onset()
    step(torch.from_numpy(tokens.get()))


def train_on_table():
    _, step = train()
    totals = queue.SimpleQueue()

    def scan_table():
        with sqlite3.connect(":memory:") as database:
            totals.put(database.execute(SCAN).fetchone())

    threading.Thread(target=scan_table, daemon=True).start()
    step()
    onset()
    total, count = totals.get()
    step(torch.full((512, 256), total / count))


def decode_samples(paths, samples):
    try:
        for path in iter(paths.get, None):
            samples.put(np.fromfile(path, dtype=np.uint8, count=512 * 256).astype(np.float32))
    except OSError:
        return


def train_on_files():
    context = multiprocessing.get_context("fork")
    paths, samples = context.Queue(), context.Queue()
    decoder = context.Process(target=decode_samples, args=(paths, samples), daemon=True)
    decoder.start()
    _, step = train()
    for path in ("/dev/zero", "/nonexistent/sample.bin"):
        paths.put(path)
    step(torch.from_numpy(samples.get()).view(512, 256))
    decoder.join(1)
    onset()
    step(torch.from_numpy(samples.get()).view(512, 256))


class ScoringStage(threading.Thread):
    def __init__(self, depth):
        super().__init__(name="scoring", daemon=True)
        self.inputs, self.scores = queue.Queue(depth), queue.Queue(depth)

    def run(self):
        while (batch := self.inputs.get()) is not None:
            self.emit(batch.std(dim=1))

    def emit(self, scores):
        self.scores.put(scores)


def submit(stage, batches):
    for batch in batches:
        if batch is batches[-1]:
            time.sleep(0.3)
            onset()
        stage.inputs.put(batch)


def train_on_scores():
    _, step = train()
    stage = ScoringStage(depth=4)
    stage.start()
    batches = [torch.randn(512, 256) for _ in range(10)]
    submit(stage, batches)
    for batch in batches:
        step(batch * stage.scores.get()[:, None])


if __name__ == "__main__":
    jobs = {"works": train_on_features, "sleeps": train_on_samples, "outside": train_on_tokens}
    jobs |= {"native": train_on_table, "gone": train_on_files, "cycle": train_on_scores}
    jobs[condition()]()
