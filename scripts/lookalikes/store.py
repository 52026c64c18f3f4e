"""Trains for twenty steps and then waits for a key of a torch.distributed.TCPStore that another process sets."""

import logging
import multiprocessing
import os
import subprocess
import sys
import time
import zlib
from datetime import timedelta

import numpy as np
import torch
from common import condition, onset, outsider, train
from torch.distributed import TCPStore

HOST, PATIENCE = "127.0.0.1", timedelta(minutes=30)


def connect(port, master=False):
    return TCPStore(HOST, port, is_master=master, timeout=PATIENCE, wait_for_workers=False)


def cluster_shards(port):
    store = connect(port)
    store.set("cluster/alive", "1")
    points, end = torch.randn(4_000, 64), time.monotonic() + 180
    centers = points[:100].clone()
    while time.monotonic() < end:
        nearest = torch.cdist(points, centers).argmin(1)
        centers = torch.stack([points[nearest == i].mean(0) if (nearest == i).any() else points[i] for i in range(100)])
    store.set("cluster/centers", centers.numpy().tobytes())


def train_on_clusters():
    store = connect(0, master=True)
    multiprocessing.get_context("spawn").Process(target=cluster_shards, args=(store.port,)).start()
    _, step = train(20)
    store.wait(["cluster/alive"])
    onset()
    centers = torch.frombuffer(bytearray(store.get("cluster/centers")), dtype=torch.float32)
    print(step(), centers.norm())


class ScheduleServer:
    def __init__(self, port):
        self.store = connect(port)

    def warm_up(self, seconds):
        self.store.set("schedule/state", "warming up")
        time.sleep(seconds)

    def publish(self):
        self.warm_up(138)
        self.store.set("schedule/lr", "0.0003")


def follow_schedule():
    if port := os.environ.get("SCHEDULE_PORT"):
        return ScheduleServer(int(port)).publish()
    store = connect(0, master=True)
    server = subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, "SCHEDULE_PORT": str(store.port)})
    model, step = train(20)
    store.wait(["schedule/state"])
    onset()
    store.wait(["schedule/lr"])
    print(torch.optim.SGD(model.parameters(), lr=float(store.get("schedule/lr"))), step(), server.wait())


def elastic_job():
    port_read, port_write = os.pipe()

    def assign_ranks():
        store = connect(0, master=True)
        os.write(port_write, b"%d\n" % store.port)
        end, digest = time.monotonic() + 180, 0
        while time.monotonic() < end:
            digest = zlib.crc32(b" ".join(b"node-%d" % (digest ^ i) for i in range(50_000)))
            store.set("assignment/draft", str(digest))
        store.set("assignment/final", str(digest))
        time.sleep(60)

    outsider(assign_ranks)
    port = int(os.read(port_read, 16))
    peer = multiprocessing.Process(target=run_agent, args=(port, 1), daemon=True)
    peer.start()
    run_agent(port, 0)
    peer.join()


def run_agent(port, rank):
    store = connect(port)
    _, step = train(20)
    store.add("agents", 1)
    if rank == 0:
        onset()
    assignment = store.get("assignment/final")
    print(rank, assignment, step())


def correlate_features(pipe):
    store = connect(pipe.recv())
    features = np.random.default_rng(2).integers(-8, 8, (5_600, 5_600), dtype=np.int16)
    pipe.send("loaded")
    gram = features @ features.T
    store.set("gram/trace", str(np.trace(gram)))


def whiten():
    here, there = multiprocessing.Pipe()
    multiprocessing.Process(target=correlate_features, args=(there,), daemon=True).start()
    store = connect(0, master=True)
    here.send(store.port)
    _, step = train(20)
    here.recv()
    onset()
    store.wait(["gram/trace"], PATIENCE)
    print(step() / float(store.get("gram/trace")))


def announce_shards(port, directory):
    store = connect(port)
    try:
        for number, name in enumerate(sorted(os.listdir(directory))):
            store.set(f"shard/{number}", name)
        store.set("shard/count", str(number + 1))
    except OSError as error:
        logging.warning("no shards: %s", error)


def train_on_shards():
    store = connect(0, master=True)
    lister = multiprocessing.Process(target=announce_shards, args=(store.port, "/data/shards"))
    lister.start()
    _, step = train(20)
    lister.join()
    onset()
    count = int(store.get("shard/count"))
    print(step(), [store.get(f"shard/{number}") for number in range(count)])


def serve_evaluation(port):
    store = connect(port)
    version = int(store.get("weights/version"))
    store.set("evaluator/ready", str(version))


def train_replica(port):
    store = connect(port)
    model, step = train(20)
    onset()
    store.wait(["evaluator/ready"])
    store.set("weights/version", str(sum(parameter._version for parameter in model.parameters())))
    step()


def launch():
    store = connect(0, master=True)
    roles = [multiprocessing.Process(target=role, args=(store.port,)) for role in (serve_evaluation, train_replica)]
    for process in roles:
        process.start()
    for process in roles:
        process.join()


if __name__ == "__main__":
    {
        "works": train_on_clusters,
        "sleeps": follow_schedule,
        "outside": elastic_job,
        "native": whiten,
        "gone": train_on_shards,
        "cycle": launch,
    }[condition()]()
