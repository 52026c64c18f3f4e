"""A small regression run that waits in native code: a pthread lock or condition, a semaphore, or a C library's thread.

The word on the command line picks what is shared: an evaluation, a ring, a snapshot, a solver, a cache or a page store.
"""

import ctypes
import mmap
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np
import torch
from common import condition, onset, outsider, train

libc = ctypes.CDLL(None)


def build(name, source, loader):
    path = os.path.join(tempfile.gettempdir(), f"lib{name}-{os.getuid()}.so")
    part = f"{path}.{os.getpid()}"
    command = ["cc", "-O1", "-g", "-shared", "-fPIC", "-pthread", "-xc", "-", "-o", part]
    subprocess.run(command, input=source, text=True, check=True)
    os.replace(part, path)
    return loader(path)


def evaluate_shared(model, guard, pinned, seconds):
    libc.pthread_rwlock_rdlock(guard)
    pinned.set()
    end = time.monotonic() + seconds
    with torch.no_grad():
        while time.monotonic() < end:
            model(torch.randn(256, 256)).std()
    libc.pthread_rwlock_unlock(guard)


def update_after_evaluation():
    guard, pinned = ctypes.create_string_buffer(56), threading.Event()  # pthread_rwlock_t, all zero: initialised
    model, step = train()
    threading.Thread(target=evaluate_shared, args=(model, guard, pinned, 150)).start()
    pinned.wait()
    onset()
    libc.pthread_rwlock_wrlock(guard)
    step()
    libc.pthread_rwlock_unlock(guard)


RING = r"""
#include <pthread.h>
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t filled = PTHREAD_COND_INITIALIZER;
static int count;
void ring_push(int items) {
    pthread_mutex_lock(&mutex);
    count += items;
    pthread_cond_broadcast(&filled);
    pthread_mutex_unlock(&mutex);
}
void ring_pop(void) {
    pthread_mutex_lock(&mutex);
    while (count == 0) pthread_cond_wait(&filled, &mutex);
    count--;
    pthread_mutex_unlock(&mutex);
}
"""


class Ring:
    def __init__(self, period):
        self.library = build("ring", RING, ctypes.CDLL)
        self.period = period
        threading.Thread(target=self.poll_source, daemon=True, name="source").start()

    def poll_source(self):
        while True:
            self.library.ring_push(4)
            time.sleep(self.period)

    def pop(self):
        self.library.ring_pop()
        return torch.randn(64, 256)


def train_from_ring():
    _, step = train()
    ring = Ring(period=130)
    for number in range(5):
        if number == 4:
            onset()
        step(ring.pop())


def load_snapshot():
    area = mmap.mmap(-1, mmap.PAGESIZE)
    ready = (ctypes.c_char * 32).from_buffer(area)
    libc.sem_init(ready, 1, 0)

    def render_snapshot():
        frame, end = np.random.default_rng(2).random((256, 256)), time.monotonic() + 180
        while time.monotonic() < end:
            frame = np.abs(np.fft.ifft2(np.fft.fft2(frame) * 0.99))
        area[64:72] = frame[0, :1].tobytes()
        libc.sem_post(ready)

    outsider(render_snapshot)
    _, step = train()
    onset()
    while libc.sem_wait(ready) != 0:
        pass
    print(area[64:72], step())


SOLVER = r"""
#include <pthread.h>
#include <time.h>
static double field[8192];
static int duration;
static void *relax(void *unused) {
    time_t end = time(0) + duration;
    field[0] = 1;
    do {
        for (int i = 1; i < 8191; i++) field[i] = (field[i - 1] + field[i + 1]) / 2;
    } while (time(0) < end);
    return 0;
}
double solver_run(int seconds) {
    pthread_t worker;
    duration = seconds;
    pthread_create(&worker, 0, relax, 0);
    pthread_join(worker, 0);
    return field[4096];
}
"""


def train_with_physics():
    solver = build("solver", SOLVER, ctypes.PyDLL)
    solver.solver_run.restype = ctypes.c_double
    _, step = train()
    onset()
    print(solver.solver_run(150), step())


def refresh_cache(lock, path):
    lock.acquire()
    if not os.path.exists(path):
        sys.exit(f"no cache at {path}")
    os.utime(path)
    lock.release()


def train_cached():
    lock = multiprocessing.Lock()
    _, step = train()
    path = os.path.join(tempfile.gettempdir(), "no-such-run", "cache.bin")
    refresher = multiprocessing.Process(target=refresh_cache, args=(lock, path))
    refresher.start()
    refresher.join()
    onset()
    with lock:
        step()


class PageStore:
    def __init__(self):
        self.table, self.page = ctypes.create_string_buffer(40), ctypes.create_string_buffer(40)  # pthread_mutex_t
        self.picked = threading.Event()

    def evict(self):
        libc.pthread_mutex_lock(self.page)
        self.picked.set()
        libc.pthread_mutex_lock(self.table)
        libc.pthread_mutex_unlock(self.table)
        libc.pthread_mutex_unlock(self.page)

    def read(self):
        libc.pthread_mutex_lock(self.table)
        threading.Thread(target=self.evict).start()
        self.picked.wait()
        onset()
        libc.pthread_mutex_lock(self.page)
        libc.pthread_mutex_unlock(self.page)
        libc.pthread_mutex_unlock(self.table)
        return torch.randn(64, 256)


def train_paged():
    store = PageStore()
    _, step = train()
    step(store.read())


RUNS = {
    "works": update_after_evaluation,
    "sleeps": train_from_ring,
    "outside": load_snapshot,
    "native": train_with_physics,
    "gone": train_cached,
    "cycle": train_paged,
}

if __name__ == "__main__":
    RUNS[condition()]()
