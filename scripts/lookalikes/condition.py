"""Training jobs whose training thread waits for a condition or an event that a helper of theirs notifies or sets:
a prefetcher, a spot notice watch, a converter's follower, a shared library, a row index, a validator."""

import ctypes
import os
import select
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from common import condition, onset, outsider, train

SPECTRUM = r"""
#include <math.h>
#include <pthread.h>
#include <time.h>
static void (*finished)(double);
static void *integrate(void *unused) {
    struct timespec begin, now;
    double sum = 0;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do {
        for (int i = 1; i < 1000000; i++) sum += sin(i) / i;
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (now.tv_sec - begin.tv_sec < 150);
    finished(sum);
    return unused;
}
int start_integral(void (*callback)(double)) {
    pthread_t thread;
    finished = callback;
    return pthread_create(&thread, 0, integrate, 0);
}
"""


class Prefetcher:
    def __init__(self):
        self.ready = threading.Condition()
        self.batches = []
        threading.Thread(target=self._fill, name="prefetcher", daemon=True).start()

    def _fill(self):
        for seconds in (0, 150):
            batch = self._augment(torch.randn(512, 256), time.monotonic() + seconds)
            with self.ready:
                self.batches.append(batch)
                self.ready.notify_all()

    def _augment(self, batch, end):
        while time.monotonic() < end:
            batch = torch.nn.functional.normalize(batch.sort(dim=1).values + torch.randn_like(batch))
        return batch

    def next_batch(self):
        with self.ready:
            while not self.batches:
                self.ready.wait()
            return self.batches.pop()


def prefetch_batches():
    _, step = train()
    prefetcher = Prefetcher()
    step(prefetcher.next_batch())
    onset()
    step(prefetcher.next_batch())


def watch_instance():
    _, step = train()
    notices, _ = os.pipe()
    cleared = threading.Event()

    def watch_notices():
        readable, _, _ = select.select([notices], [], [], 120)
        if not readable:
            cleared.set()

    threading.Thread(target=watch_notices, daemon=True).start()
    step()
    onset()
    cleared.wait()
    step()


class ConverterFollower(threading.Thread):
    def __init__(self, progress):
        super().__init__(name="converter", daemon=True)
        self.progress = progress
        self.changed = threading.Condition(threading.Lock())
        self.parts = 0

    def run(self):
        with os.fdopen(self.progress) as lines:
            for _ in lines:
                with self.changed:
                    self.parts += 1
                    self.changed.notify()

    def wait_for_part(self, number):
        with self.changed:
            self.changed.wait_for(lambda: self.parts >= number)


def follow_converter():
    progress, report = os.pipe()

    def convert_parts():
        for part, seconds in enumerate((0, 160)):
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                torch.linalg.qr(torch.randn(200, 200))
            os.write(report, f"part {part}\n".encode())

    outsider(convert_parts)
    os.close(report)
    follower = ConverterFollower(progress)
    _, step = train()
    follower.start()
    follower.wait_for_part(1)
    step()
    onset()
    follower.wait_for_part(2)
    step()


def calibrate_spectrum():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "spectrum.so")
        command = ["cc", "-O1", "-shared", "-fPIC", "-pthread", "-x", "c", "-", "-o", path, "-lm"]
        subprocess.run(command, input=SPECTRUM.encode(), check=True)
        spectrum = ctypes.CDLL(path)
    _, step = train()
    calibrated = threading.Event()
    callback = ctypes.CFUNCTYPE(None, ctypes.c_double)(lambda total: calibrated.set())
    spectrum.start_integral(callback)
    step()
    onset()
    calibrated.wait()
    step()


def index_rows():
    _, step = train()
    indexed, rows = threading.Condition(), {}

    def build_index(count):
        keys = torch.randperm(count).tolist()
        with indexed:
            rows.update(zip(keys, range(count), strict=True))
            indexed.notify_all()

    pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="index")
    pool.submit(build_index, 1000)
    for _ in range(10):
        step()
    with indexed:
        onset()
        indexed.wait()
    step()


class Release:
    def __init__(self, step):
        self.step, self.version = step, 0
        self.validated = threading.Event()
        self.published = threading.Condition()
        self.exporter = threading.Thread(target=self.export, args=(2,), daemon=True)

    def export(self, version):
        with self.published:
            self.published.wait_for(lambda: self.version >= version)

    def validate(self):
        self.exporter.join()
        self.validated.set()

    def publish(self):
        with self.published:
            self.version += 1
            self.published.notify_all()
        self.step()
        onset()
        self.validated.wait()
        self.validated.clear()


def release_versions():
    _, step = train()
    release = Release(step)
    release.exporter.start()
    threading.Thread(target=release.validate, daemon=True).start()
    for _ in range(2):
        release.publish()


if __name__ == "__main__":
    jobs = {"works": prefetch_batches, "sleeps": watch_instance, "outside": follow_converter}
    jobs |= {"native": calibrate_spectrum, "gone": index_rows, "cycle": release_versions}
    jobs[condition()]()
