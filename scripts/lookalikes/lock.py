"""Training jobs whose training thread takes a lock that a helper of theirs holds: a checkpoint writer,
a metrics client, a shard cache, a vocabulary counter, a log rotation, a weight publisher."""

import ctypes
import os
import socket
import subprocess
import tempfile
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from common import condition, onset, outsider, train

PAIRS = r"""
#include <time.h>
static long table[65536];
long count_pairs(const unsigned char *text, long size, long seconds) {
    struct timespec begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do {
        for (long i = 1; i < size; i++) table[text[i - 1] << 8 | text[i]]++;
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (now.tv_sec - begin.tv_sec < seconds);
    return table[0];
}
"""


class CheckpointWriter(threading.Thread):
    def __init__(self, model):
        super().__init__(name="checkpoint-writer", daemon=True)
        self.state = {name: tensor.clone().numpy() for name, tensor in model.state_dict().items()}
        self.state_lock = threading.Lock()
        self.begun = threading.Event()

    def run(self):
        with self.state_lock:
            self.begun.set()
            self.write_parts(time.monotonic() + 150)

    def write_parts(self, end):
        with tempfile.TemporaryFile() as file:
            while time.monotonic() < end:
                file.seek(0)
                for array in self.state.values():
                    file.write(zlib.compress(array.tobytes(), 9))

    def stage(self, model):
        onset()
        with self.state_lock:
            self.state = {name: tensor.clone().numpy() for name, tensor in model.state_dict().items()}


def save_checkpoints():
    model, step = train()
    writer = CheckpointWriter(model)
    writer.start()
    writer.begun.wait()
    step()
    writer.stage(model)


class MetricsClient:
    def __init__(self):
        self._lock = threading.RLock()
        self.pending = []
        self.uploading = False

    def log(self, loss):
        self._lock.acquire()
        try:
            self.pending.append(loss)
        finally:
            self._lock.release()

    def upload(self):
        with self._lock:
            self.uploading = True
            self.pending.clear()
            self.back_off(status=429)

    def back_off(self, status):
        time.sleep(120 if status == 429 else 1)


def log_metrics():
    _, step = train()
    client = MetricsClient()
    threading.Thread(target=client.upload, daemon=True).start()
    while not client.uploading:
        step()
    loss = step()
    onset()
    client.log(loss)


def load_shards():
    listener = socket.create_server(("127.0.0.1", 0))

    def serve_index():
        link, _ = listener.accept()
        link.recv(16)
        end = time.monotonic() + 150
        while time.monotonic() < end:
            order = np.argsort(np.random.default_rng(0).random(200_000))
        link.sendall(order[:64].tobytes())

    def pull_index(address):
        with cache_lock, socket.create_connection(address) as link:
            link.sendall(b"index")
            return np.frombuffer(link.recv(512), dtype=np.int64)

    outsider(serve_index)
    address = listener.getsockname()
    listener.close()
    _, step = train()
    cache_lock = threading.Lock()
    with ThreadPoolExecutor(1, thread_name_prefix="shards") as pool:
        index = pool.submit(pull_index, address)
        while not cache_lock.locked():
            step()
        onset()
        with cache_lock:
            step()
        return index.result()


def build_vocabulary():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "pairs.so")
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-x", "c", "-", "-o", path], input=PAIRS.encode(), check=True)
        pairs = ctypes.PyDLL(path)
    _, step = train()
    vocabulary_lock = threading.Lock()

    def recount(text):
        vocabulary_lock.acquire()
        time.sleep(1)
        pairs.count_pairs(text, ctypes.c_long(len(text)), ctypes.c_long(150))
        vocabulary_lock.release()

    threading.Thread(target=recount, args=(os.urandom(1 << 20),), daemon=True).start()
    while not vocabulary_lock.locked():
        step()
    onset()
    vocabulary_lock.acquire()
    step()


def keep_log():
    _, step = train()
    stream_lock, lines = threading.Lock(), []

    def rotate(folder):
        try:
            stream_lock.acquire()
            os.replace(os.path.join(folder, "train.log"), os.path.join(folder, "train.log.1"))
            stream_lock.release()
        except OSError as error:
            lines.append(f"no rotation: {error}")

    def write_line(text):
        with stream_lock:
            lines.append(text)

    rotation = threading.Thread(target=rotate, args=("/nonexistent",))
    rotation.start()
    rotation.join()
    text = f"loss {step()}"
    onset()
    write_line(text)


class Publisher:
    def __init__(self, model):
        self.model, self.averages = model, {}
        self.weights, self.statistics, self.files = threading.RLock(), threading.RLock(), threading.Lock()
        self.ready = threading.Barrier(3)

    def collect_averages(self):
        with self.statistics:
            self.ready.wait()
            with self.files:
                self.averages.clear()

    def export_weights(self):
        with self.files:
            self.ready.wait()
            with self.weights:
                self.averages.update(self.model.state_dict())

    def update(self, step):
        with self.weights:
            self.ready.wait()
            loss = step()
            onset()
            with self.statistics:
                self.averages["loss"] = loss


def publish_weights():
    model, step = train()
    publisher = Publisher(model)
    for work in (publisher.collect_averages, publisher.export_weights):
        threading.Thread(target=work, daemon=True).start()
    publisher.update(step)


if __name__ == "__main__":
    jobs = {"works": save_checkpoints, "sleeps": log_metrics, "outside": load_shards}
    jobs |= {"native": build_vocabulary, "gone": keep_log, "cycle": publish_weights}
    jobs[condition()]()
