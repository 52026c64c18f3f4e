"""Trains for twenty steps and then looks for a file again and again, until another stage of the job has written it."""

import csv
import glob
import itertools
import multiprocessing
import os
import sqlite3
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import torch
from common import condition, onset, outsider, train

ROOT = Path(tempfile.mkdtemp(prefix="stages-"))


def tokenize_split(directory):
    end = time.monotonic() + 180
    for shard in itertools.count():
        if time.monotonic() > end:
            break
        ids = torch.randint(0, 30_000, (2_000, 128))
        torch.save(ids.sort().values, directory / f"shard-{shard % 8}.pt")
    (directory / "_SUCCESS").touch()


def wait_for_stage(directory, interval=0.5):
    while not (directory / "_SUCCESS").exists():
        time.sleep(interval)


def pretrain_then_finetune():
    multiprocessing.Process(target=tokenize_split, args=(ROOT,), name="tokenizer").start()
    _, step = train(20)
    onset()
    wait_for_stage(ROOT)
    step(torch.load(ROOT / "shard-0.pt")[:512, :1].expand(-1, 256).float())


def schedule_release(model):
    closing = threading.Event()

    def hold_snapshot():
        closing.wait(timeout=135)
        torch.save(model.state_dict(), ROOT / "partial.tmp")
        os.rename(ROOT / "partial.tmp", ROOT / "teacher-001.pt")

    threading.Thread(target=hold_snapshot, name="release", daemon=True).start()


def distill():
    model, step = train(10)
    schedule_release(model)
    for _ in range(10):
        step()
    onset()
    while not (teachers := glob.glob(str(ROOT / "teacher-*.pt"))):
        time.sleep(0.2)
    model.load_state_dict(torch.load(teachers[0]))
    step()


class StageGate:
    def __init__(self, path, every=1.0):
        self.path, self.every = path, every

    def block(self):
        while not os.path.isfile(self.path):
            time.sleep(self.every)
        return self.path


def train_on_features():
    target = ROOT / "features.csv"

    def export_features():
        rng, end = np.random.default_rng(1), time.monotonic() + 180
        with open(ROOT / "features.part", "w", newline="") as part:
            while time.monotonic() < end:
                part.seek(0)
                part.truncate()
                csv.writer(part).writerows(np.linalg.qr(rng.normal(size=(256, 256)))[0].round(4).tolist())
        os.replace(ROOT / "features.part", target)

    outsider(export_features)
    gate = StageGate(target)
    _, step = train(20)
    onset()
    step(torch.from_numpy(np.loadtxt(gate.block(), delimiter=",", dtype=np.float32)))


class EventStatistics(threading.Thread):
    QUERY = (
        "WITH RECURSIVE event(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM event LIMIT 900000000) "
        "SELECT count(*), avg(id % 977), max(id * 31 % 1009) FROM event"
    )

    def run(self):
        database = sqlite3.connect(":memory:")
        (ROOT / "statistics.txt").write_text(repr(database.execute(self.QUERY).fetchone()))


def read_when_ready(path):
    while True:
        try:
            return path.read_text()
        except FileNotFoundError:
            time.sleep(1)


def train_with_statistics():
    EventStatistics(daemon=True).start()
    _, step = train(20)
    onset()
    print(read_when_ready(ROOT / "statistics.txt"), step())


def merge_parts():
    command = "zcat part-*.gz > merged.tmp && mv merged.tmp merged.txt"
    return subprocess.Popen(command, shell=True, cwd=ROOT, stderr=subprocess.DEVNULL)


def continue_on_merged():
    merge = merge_parts()
    _, step = train(20)
    merged, polls = ROOT / "merged.txt", 0
    onset()
    while not merged.exists():
        polls += 1
        if polls % 60 == 0:
            print("waiting for", merged, flush=True)
        time.sleep(0.5)
    print(merge.args, merged.stat().st_size, step())


def score_candidates(weights):
    state = weights.recv()
    scores = torch.stack([tensor.float().norm() for tensor in state.values()])
    (ROOT / "scores.txt").write_text(" ".join(map(str, scores.tolist())))


def best_score(path, interval=0.25):
    for _ in itertools.count():
        if os.access(path, os.R_OK):
            return max(map(float, path.read_text().split()))
        time.sleep(interval)


def search():
    here, there = multiprocessing.Pipe()
    scorer = multiprocessing.Process(target=score_candidates, args=(there,), daemon=True)
    scorer.start()
    model, step = train(20)
    onset()
    best = best_score(ROOT / "scores.txt")
    here.send({name: value.detach() for name, value in model.state_dict().items()})
    scorer.join()
    print(best, step())


if __name__ == "__main__":
    {
        "works": pretrain_then_finetune,
        "sleeps": distill,
        "outside": train_on_features,
        "native": train_with_statistics,
        "gone": continue_on_merged,
        "cycle": search,
    }[condition()]()
