"""Trains for twenty steps and then takes an advisory lock on a file (flock or lockf) that another task holds."""

import concurrent.futures
import contextlib
import ctypes
import fcntl
import json
import multiprocessing
import os
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import torch
from common import condition, onset, outsider, train

ROOT = Path(tempfile.mkdtemp(prefix="run-"))
DEFRAGMENT = r"""
#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>
static int file;
static void *defragment(void *unused) {
    volatile unsigned long page = 1;
    for (time_t end = time(0) + 180; time(0) < end;)
        for (long i = 0; i < 10000000; i++) page = page * 6364136223846793005UL + 1442695040888963407UL;
    close(file);
    return unused;
}
int arena_open(const char *path) {
    pthread_t thread;
    file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    flock(file, LOCK_EX);
    return pthread_create(&thread, 0, defragment, 0);
}
"""


class FileLock:
    def __init__(self, path):
        self.path = path

    def __enter__(self):
        self.handle = open(self.path, "w")
        fcntl.flock(self.handle, fcntl.LOCK_EX)

    def __exit__(self, *_):
        self.handle.close()


def tokenize_corpus(locked):
    with FileLock(ROOT / "cache.lock"):
        locked.set()
        rng, counts, end = np.random.default_rng(0), np.zeros(50_000, dtype=np.int64), time.monotonic() + 180
        while time.monotonic() < end:
            counts += np.bincount(rng.zipf(1.3, 200_000) % 50_000, minlength=50_000)
            np.save(ROOT / "counts.npy", counts)


def train_on_cache():
    locked = multiprocessing.Event()
    multiprocessing.Process(target=tokenize_corpus, args=(locked,)).start()
    _, step = train(20)
    locked.wait()
    onset()
    with FileLock(ROOT / "cache.lock"):
        frequencies = torch.from_numpy(np.load(ROOT / "counts.npy"))
    print(step(), frequencies.sum())


class Uploader(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True)
        self.uploading = threading.Event()

    def respect_rate_limit(self, seconds):
        self.uploading.set()
        time.sleep(seconds)

    def run(self):
        with open(ROOT / "checkpoint.pt", "ab") as handle:
            fcntl.flock(handle.fileno(), fcntl.LOCK_EX)
            self.respect_rate_limit(135)


def save_checkpoint(model):
    with open(ROOT / "checkpoint.pt", "r+b") as handle:
        onset()
        fcntl.flock(handle.fileno(), fcntl.LOCK_EX)
        torch.save(model.state_dict(), handle)


def train_with_uploads():
    uploader = Uploader()
    uploader.start()
    model, step = train(20)
    uploader.uploading.wait()
    save_checkpoint(model)
    step()


def register_run():
    opened = multiprocessing.Event()

    def compact_registry():
        with open(ROOT / "registry.json", "w") as registry:
            fcntl.lockf(registry, fcntl.LOCK_EX)
            opened.set()
            end, runs = time.monotonic() + 180, {}
            while time.monotonic() < end:
                runs = json.loads(json.dumps({str(i): [i % 7, i / 3] for i in range(20_000)}))
            json.dump(runs, registry)

    outsider(compact_registry)
    opened.wait()
    _, step = train(20)
    registry = open(ROOT / "registry.json", "r+")
    onset()
    fcntl.lockf(registry.fileno(), fcntl.LOCK_EX)
    print(len(json.load(registry)), step())


@contextlib.contextmanager
def exclusive(path):
    descriptor = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def train_from_arena():
    build = ["cc", "-O1", "-shared", "-fPIC", "-pthread", "-x", "c", "-", "-o", str(ROOT / "arena.so")]
    subprocess.run(build, input=DEFRAGMENT.encode(), check=True)
    ctypes.CDLL(str(ROOT / "arena.so")).arena_open(str(ROOT / "arena.bin").encode())
    model, step = train(20)
    onset()
    with exclusive(ROOT / "arena.bin") as descriptor:
        os.write(descriptor, model[0].weight.detach().numpy().tobytes())
    step()


def refresh_manifest(path):
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    entries = json.loads(os.read(descriptor, 1 << 20) or b"{}")
    os.ftruncate(descriptor, 0)
    os.write(descriptor, json.dumps({"shards": sorted(entries["shards"])}).encode())
    os.close(descriptor)


def append_to_manifest():
    path = ROOT / "manifest.json"
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(refresh_manifest, path)
    _, step = train(20)
    with path.open("a") as manifest:
        onset()
        fcntl.flock(manifest, fcntl.LOCK_EX)
        manifest.write(json.dumps({"loss": step()}))


def evaluate_latest(loaded, epoch_end):
    with (ROOT / "latest.lock").open("w") as latest, (ROOT / "metrics.lock").open("w") as metrics:
        fcntl.flock(latest, fcntl.LOCK_EX)
        loaded.set()
        epoch_end.wait()
        fcntl.flock(metrics, fcntl.LOCK_EX)
        (ROOT / "metrics.json").write_text(json.dumps({"accuracy": torch.rand(1000).mean().item()}))


def finish_epoch(model, step, epoch_end):
    with (ROOT / "metrics.lock").open("w") as metrics, (ROOT / "latest.lock").open("w") as latest:
        fcntl.flock(metrics, fcntl.LOCK_EX)
        epoch_end.set()
        (ROOT / "loss.json").write_text(json.dumps([step() for _ in range(10)]))
        onset()
        fcntl.flock(latest, fcntl.LOCK_EX)
        torch.save(model.state_dict(), ROOT / "latest.pt")


def train_and_evaluate():
    loaded, epoch_end = multiprocessing.Event(), multiprocessing.Event()
    multiprocessing.Process(target=evaluate_latest, args=(loaded, epoch_end), daemon=True).start()
    model, step = train(20)
    loaded.wait()
    finish_epoch(model, step, epoch_end)


if __name__ == "__main__":
    {
        "works": train_on_cache,
        "sleeps": train_with_uploads,
        "outside": register_run,
        "native": train_from_arena,
        "gone": append_to_manifest,
        "cycle": train_and_evaluate,
    }[condition()]()
