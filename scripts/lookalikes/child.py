"""A training program that waits for a child process: a tokenizer, an uploader, a cache reader, a packer and others."""

import fcntl
import itertools
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter

import numpy as np
import torch
from common import condition, onset, outsider, train

CHECKSUM_PROGRAM = r"""
#include <stdio.h>
#include <time.h>
int main(void) {
    unsigned long sum = 1;
    for (time_t end = time(0) + 160; time(0) < end;)
        for (int i = 0; i < 100000000; i++) sum = sum * 6364136223846793005UL + i;
    return printf("%lx\n", sum) < 0;
}
"""


class Tokenizer(multiprocessing.Process):
    """Counts the pairs of tokens of the next epoch's text."""

    def run(self):
        self.pairs, end = Counter(), time.monotonic() + 150
        while time.monotonic() < end:
            self.count_pairs(torch.randint(0, 300, (20_000,)).tolist())

    def count_pairs(self, tokens):
        self.pairs.update(itertools.pairwise(tokens))


def train_and_tokenize():
    tokenizer = Tokenizer(daemon=True)
    _, step = train()
    tokenizer.start()
    step()
    onset()
    tokenizer.join()
    step()


def upload_with_backoff(retry_after=130):
    time.sleep(retry_after)
    print(json.dumps({"uploaded": True}))


class CheckpointUpload:
    def __enter__(self):
        command = [sys.executable, __file__, "upload"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *exception):
        onset()
        answer, _ = self.process.communicate()
        print(json.loads(answer))


def train_and_upload():
    with CheckpointUpload():
        train()


def rebuild_cache(path):
    with open(path, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        end = time.monotonic() + 155
        while time.monotonic() < end:
            np.unique(np.random.default_rng().integers(0, 50_000, 300_000))


def read_cache(path):
    with open(path) as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)


def train_from_cache():
    _, path = tempfile.mkstemp(suffix=".lock")
    outsider(lambda: rebuild_cache(path))
    _, step = train()
    if (reader := os.fork()) == 0:
        read_cache(path)
        os._exit(0)
    onset()
    _, status = os.waitpid(reader, 0)
    os.unlink(path)
    print("cache read:", os.waitstatus_to_exitcode(status), step())


def verify_checkpoint(folder):
    program = os.path.join(folder, "checksum")
    subprocess.run(["cc", "-O1", "-x", "c", "-", "-o", program], input=CHECKSUM_PROGRAM, text=True, check=True)
    train()
    onset()
    subprocess.check_call([program], preexec_fn=lambda: os.nice(5))


def train_and_verify():
    with tempfile.TemporaryDirectory() as folder:
        verify_checkpoint(folder)


def pack_samples(samples, length=512):
    rows, row = [], []
    for sample in iter(samples.get, None):
        row += sample
        if len(row) >= length:
            rows, row = [*rows, row[:length]], row[length:]


def feed(samples, documents):
    for document in documents:
        samples.put(document["tokens"])
    samples.put(None)


def train_and_pack():
    samples = multiprocessing.Queue()
    packer = multiprocessing.Process(target=pack_samples, args=(samples,))
    packer.start()
    documents = [{"tokens": [1, 2, 3]}, {"tokens": [4, 5]}, {"text": "not tokenized"}, {"tokens": [6]}]
    threading.Thread(target=feed, args=(samples, documents)).start()
    _, step = train()
    onset()
    packer.join()
    step()


def list_shards(count=4000):
    for shard in range(count):
        print(json.dumps({"shard": f"train-{shard:05}.tar", "samples": 10_000}))


def train_over_shards():
    listing = subprocess.Popen([sys.executable, __file__, "shards"], stdout=subprocess.PIPE, text=True)
    _, step = train()

    def read_listing():
        onset()
        if listing.wait() != 0:
            raise RuntimeError("no list of shards")
        return listing.stdout.read().splitlines()

    for _ in read_listing():
        step()


if __name__ == "__main__":
    {
        "works": train_and_tokenize,
        "sleeps": train_and_upload,
        "outside": train_from_cache,
        "native": train_and_verify,
        "gone": train_and_pack,
        "cycle": train_over_shards,
        "upload": upload_with_backoff,
        "shards": list_shards,
    }[condition()]()
