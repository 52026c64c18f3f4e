"""A small regression run that looks at a flag every fraction of a second until side work has raised it.

The word on the command line picks the flag: an index, a quota, a published number, a decoder, a validation or a queue.
"""

import ctypes
import logging
import multiprocessing
import os
import queue
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from common import condition, onset, outsider, train

log = logging.getLogger("train")


def build_index(vectors, index, seconds):
    end = time.monotonic() + seconds
    centroids = vectors[:64].clone()
    while time.monotonic() < end:
        nearest = torch.cdist(vectors, centroids).argmin(1)
        sums = torch.zeros_like(centroids).index_add_(0, nearest, vectors)
        centroids = sums / torch.bincount(nearest, minlength=64).clamp(min=1).unsqueeze(1)
    index["centroids"] = centroids


def train_with_index():
    index = {}
    _, step = train()
    threading.Thread(target=build_index, args=(torch.randn(4096, 256), index, 150), name="index").start()
    onset()
    while "centroids" not in index:
        time.sleep(0.1)
    step(index["centroids"])


class Quota:
    def __init__(self, per_window, window):
        self.left, self.per_window, self.window = per_window, per_window, window
        self.closing = threading.Event()
        self.refiller = threading.Thread(target=self._refill, daemon=True)
        self.refiller.start()

    def _refill(self):
        while not self.closing.wait(self.window):
            self.left = self.per_window

    def take(self):
        if self.left == 0:
            onset()
        while self.left == 0:
            time.sleep(0.5)
        self.left -= 1


def train_on_quota():
    _, step = train()
    quota = Quota(per_window=8, window=130)
    for _ in range(10):
        quota.take()
        step()
    quota.closing.set()


def follow_teacher():
    published = multiprocessing.RawValue("i", 0)

    def distill_teacher(seconds=180):
        teacher = torch.randn(192, 192)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            teacher = torch.linalg.qr(teacher @ teacher.T + torch.eye(192))[0]
        published.value = 7

    outsider(distill_teacher)
    _, step = train()
    onset()
    while published.value == 0:
        time.sleep(0.25)
    print(published.value, step())


DECODER = r"""
#include <pthread.h>
#include <time.h>
struct job { int *finished; int seconds; };
static struct job job;
static double samples[4096];
static void *decode(void *unused) {
    time_t end = time(0) + job.seconds;
    do {
        for (int i = 1; i < 4096; i++) samples[i] = samples[i] * 0.75 + samples[i - 1] * 0.25 + i;
    } while (time(0) < end);
    *(volatile int *)job.finished = 1;
    return 0;
}
int decoder_start(int *finished, int seconds) {
    pthread_t thread;
    job.finished = finished;
    job.seconds = seconds;
    return pthread_create(&thread, 0, decode, 0);
}
"""


def load_decoder():
    path = os.path.join(tempfile.gettempdir(), f"libdecoder-{os.getuid()}.so")
    part = f"{path}.{os.getpid()}"
    command = ["cc", "-O1", "-g", "-shared", "-fPIC", "-pthread", "-xc", "-", "-o", part]
    subprocess.run(command, input=DECODER, text=True, check=True)
    os.replace(part, path)
    return ctypes.CDLL(path)


def train_on_clips():
    decoder = load_decoder()
    _, step = train()
    finished = ctypes.c_int(0)
    decoder.decoder_start(ctypes.byref(finished), 150)
    onset()
    while not finished.value:
        time.sleep(0.05)
    step()


class Validator:
    def __init__(self, root):
        self.root, self.passed = root, threading.Event()
        self.executor = ThreadPoolExecutor(1, thread_name_prefix="validate")

    def start(self):
        self.executor.submit(self._validate)

    def _validate(self):
        held_out = np.load(os.path.join(self.root, "held-out.npy"))
        log.info("held out: %f", held_out.mean())
        self.passed.set()

    def block_until_passed(self):
        onset()
        while not self.passed.is_set():
            time.sleep(0.2)


def train_validated():
    validator = Validator(os.path.join(tempfile.gettempdir(), "no-such-run"))
    _, step = train()
    validator.start()
    validator.block_until_passed()
    step()


def train_asynchronously():
    model, step = train()
    gradients, weights_lock = queue.Queue(), threading.RLock()

    def apply_gradients():
        while (gradient := gradients.get()) is not None:
            with weights_lock:
                model[0].weight.data.sub_(gradient, alpha=1e-3)

    threading.Thread(target=apply_gradients, name="server").start()
    with weights_lock:
        for _ in range(4):
            step()
            gradients.put(model[0].weight.grad.clone())
        onset()
        while not gradients.empty():
            time.sleep(0.1)
    gradients.put(None)


RUNS = {
    "works": train_with_index,
    "sleeps": train_on_quota,
    "outside": follow_teacher,
    "native": train_on_clips,
    "gone": train_validated,
    "cycle": train_asynchronously,
}

if __name__ == "__main__":
    RUNS[condition()]()
