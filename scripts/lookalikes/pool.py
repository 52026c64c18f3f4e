"""A small regression run that gives tasks to a pool of processes or threads and waits for what they return.

The word on the command line picks the tasks: scoring, downloads, ranking, text cleaning, decoding or grading.
"""

import functools
import multiprocessing
import os
import re
import socket
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, wait

import numpy as np
import torch
from common import condition, onset, outsider, train


def score_shard(seconds):
    rows, best, end = torch.randn(512, 256), 0.0, time.monotonic() + seconds
    while time.monotonic() < end:
        rows = torch.nn.functional.normalize(rows @ torch.randn(256, 256))
        best = max(best, rows.max().item())
    return best


def rescore():
    _, step = train()
    with multiprocessing.Pool(2) as pool:
        onset()
        scores = pool.map(score_shard, [1, 150], chunksize=1)
    print(max(scores), step())


class Mirror:
    def __init__(self, retry_after):
        self.retry_after = retry_after

    def download(self, name):
        if name.endswith("-3"):
            time.sleep(self.retry_after)
        return torch.full((64, 256), float(len(name)))


def train_on_downloads():
    mirror = Mirror(retry_after=125)
    _, step = train()
    executor = ThreadPoolExecutor(2, thread_name_prefix="mirror")
    pending = [executor.submit(mirror.download, f"shard-{number}") for number in range(4)]
    onset()
    done, _ = wait(pending)
    for future in done:
        step(future.result())


def query_ranker(port):
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"rank\n")
        return np.frombuffer(connection.recv(512), dtype=np.int64)


def train_on_ranking():
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]

    def rank_candidates():
        connection, _ = listener.accept()
        connection.recv(16)
        candidates, end = np.random.default_rng(3).random((2000, 64)), time.monotonic() + 150
        while time.monotonic() < end:
            order = np.argsort(candidates @ candidates.mean(0))
            candidates = candidates[order] * 0.9 + candidates * 0.1
        connection.sendall(order[:64].tobytes())

    outsider(rank_candidates)
    listener.close()
    _, step = train()
    with ThreadPoolExecutor(max_workers=1) as executor:
        ranking = executor.submit(query_ranker, port)
        onset()
        print(ranking.result()[:4], step())


MARKUP = re.compile(r"<p>(?:\w+\s?)+</p>")


def strip_markup(page):
    return MARKUP.sub("", page)


class Cleaner:
    def __init__(self, workers):
        self.executor = ProcessPoolExecutor(workers)

    def clean(self, pages):
        futures = [self.executor.submit(strip_markup, page) for page in pages]
        onset()
        letters = 0
        for future in futures:
            letters += len(future.result())
        return letters


def train_on_text():
    cleaner = Cleaner(workers=1)
    _, step = train()
    pages = ["<p>plain words</p> kept", "<p>" + "x" * 32 + "<p>", "<p>end</p>"]
    print(cleaner.clean(pages), step())


def decode_shard(root, number):
    path = os.path.join(root, f"shard-{number}.npy")
    if number > 1 and not os.path.exists(path):
        sys.exit(f"no shard at {path}")
    return np.full((64, 256), number, dtype=np.float32)


def train_on_shards():
    decode = functools.partial(decode_shard, os.path.join(tempfile.gettempdir(), "no-such-run"))
    pool = multiprocessing.get_context("fork").Pool(processes=2)
    _, step = train()
    results = [pool.apply_async(decode, (number,)) for number in range(3)]
    for result in results:
        result.wait(timeout=1)
        if not result.ready():
            onset()
        step(torch.from_numpy(result.get()))


def attach(queue):
    global incoming
    incoming = queue


def grade_samples(count):
    weights = incoming.get()
    return float((np.random.default_rng(4).random((count, len(weights))) @ weights).mean())


def train_graded():
    rounds = multiprocessing.Queue()
    model, step = train()
    with ProcessPoolExecutor(max_workers=1, initializer=attach, initargs=(rounds,)) as grader:
        grade = grader.submit(grade_samples, 100)
        onset()
        baseline = grade.result()
        for _ in range(3):
            step()
            rounds.put(model[0].weight[0].detach().numpy())
            print(grader.submit(grade_samples, 100).result() - baseline)


RUNS = {
    "works": rescore,
    "sleeps": train_on_downloads,
    "outside": train_on_ranking,
    "native": train_on_text,
    "gone": train_on_shards,
    "cycle": train_graded,
}

if __name__ == "__main__":
    RUNS[condition()]()
