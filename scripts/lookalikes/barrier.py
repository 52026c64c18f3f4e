"""Training jobs whose training thread waits at a barrier or for a semaphore's slot that helpers of theirs give:
shard packers, an evaluator, a cache reader, a whitening pass, feeders, a snapshot writer."""

import fcntl
import logging
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from common import condition, onset, outsider, train


def pack_epochs():
    _, step = train()
    epoch_barrier = threading.Barrier(3)

    def pack_shard(seconds):
        generator, end = np.random.default_rng(1), time.monotonic() + seconds
        while time.monotonic() < end:
            lengths = np.sort(generator.integers(1, 512, 100_000))
            np.unique(np.cumsum(lengths) // 4096, return_counts=True)
        epoch_barrier.wait()

    with ThreadPoolExecutor(2, thread_name_prefix="packer") as pool:
        shards = [pool.submit(pack_shard, seconds) for seconds in (1, 150)]
        step()
        onset()
        epoch_barrier.wait()
        step()
        return [shard.result() for shard in shards]


class Evaluator(threading.Thread):
    def __init__(self, slots):
        super().__init__(daemon=True)
        self.slots = slots
        self.closing = threading.Event()
        self.admitted = threading.Event()

    def run(self):
        with self.slots:
            self.admitted.set()
            self.await_quota()

    def await_quota(self):
        return self.closing.wait(110)


def share_slots():
    _, step = train()
    slots = threading.BoundedSemaphore(1)
    evaluator = Evaluator(slots)
    evaluator.start()
    evaluator.admitted.wait()
    step()
    onset()
    with slots:
        step()


def join_cache():
    path = tempfile.NamedTemporaryFile(prefix="dataset-", suffix=".lock")

    def convert_dataset():
        with open(path.name, "wb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            end = time.monotonic() + 160
            while time.monotonic() < end:
                np.fft.rfft(np.random.default_rng(2).random(1 << 16))

    class CacheReader(threading.Thread):
        def run(self):
            self.open_cache()
            start.wait()

        def open_cache(self):
            with open(path.name, "wb") as cache:
                fcntl.flock(cache, fcntl.LOCK_SH)

    outsider(convert_dataset)
    _, step = train(30)
    start = threading.Barrier(2)
    reader = CacheReader(name="cache-reader", daemon=True)
    reader.start()
    step()
    onset()
    start.wait()
    step()
    reader.join()


def whiten_inputs():
    _, step = train()
    finished, result = threading.Semaphore(0), []

    def iterate_covariance(covariance):
        torch.set_num_threads(1)
        result.append(torch.linalg.matrix_power(covariance, 2**62 - 1))
        finished.release()

    basis = torch.linalg.qr(torch.randn(512, 512, dtype=torch.float64)).Q
    threading.Thread(target=iterate_covariance, args=(0.9 * torch.block_diag(*[basis] * 8),), daemon=True).start()
    step()
    onset()
    finished.acquire()
    step(result[0][:512, :256].float())


def feed_streams():
    _, step = train()
    rendezvous = threading.Barrier(parties=3)
    batches = {}

    def feed(name, rows):
        stream = iter(rows)
        try:
            while True:
                batches[name] = next(stream)
                rendezvous.wait()
        except StopIteration:
            logging.getLogger("feed").debug("%s is used up", name)

    for name, count in (("text", 8), ("code", 3)):
        rows = [torch.randn(512, 256) for _ in range(count)]
        threading.Thread(target=feed, args=(name, rows), name=name, daemon=True).start()
    for position in range(8):
        if position == 3:
            time.sleep(0.5)
            onset()
        rendezvous.wait()
        step(batches["text"])


class StagingArea:
    """Two buffers for copies of weights; a copy needs one to read and one to write."""

    def __init__(self, model):
        self.model = model
        self.buffers = threading.Semaphore(2)
        self.begun = threading.Barrier(2)

    def write_snapshot(self):
        with self.buffers:
            self.begun.wait()
            source = [parameter.detach().clone() for parameter in self.model.parameters()]
            self.buffers.acquire()
            self.target = [tensor.half() for tensor in source]
            self.buffers.release()

    def refresh_average(self, step):
        self.buffers.acquire()
        self.begun.wait()
        step()
        time.sleep(0.2)
        onset()
        self.buffers.acquire()
        self.average = [parameter.detach().mean() for parameter in self.model.parameters()]
        self.buffers.release(2)


def average_weights():
    model, step = train()
    area = StagingArea(model)
    threading.Thread(target=area.write_snapshot, name="snapshot", daemon=True).start()
    area.refresh_average(step)


if __name__ == "__main__":
    jobs = {"works": pack_epochs, "sleeps": share_slots, "outside": join_cache}
    jobs |= {"native": whiten_inputs, "gone": feed_streams, "cycle": average_weights}
    jobs[condition()]()
