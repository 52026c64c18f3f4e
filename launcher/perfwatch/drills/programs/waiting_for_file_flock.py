"""The feature cache is guarded by flock; another job holds the lock and does nothing with it."""

import fcntl
import tempfile
import threading
import time

import stage
import torch


class FeatureCache:
    def __init__(self, path):
        self.path = path

    def __enter__(self):
        self.handle = open(self.path, "w")
        fcntl.flock(self.handle, fcntl.LOCK_EX)

    def __exit__(self, *_):
        self.handle.close()


def other_job(path):
    with FeatureCache(path):
        threading.Event().wait()


def liveness_probe():
    while True:
        time.sleep(0.5)
        print("live", flush=True)


def train(options, path):
    gp = torch.nn.Linear(900, 300)
    lbfgs = torch.optim.Adam(gp.parameters())
    for step in range(10**6):
        if step == options.steps:
            stage.outsider(lambda: other_job(path))
            time.sleep(0.2)
            stage.onset()
        with FeatureCache(path):
            features = torch.randn(100, 900)
        lbfgs.zero_grad()
        gp(features).logsumexp(1).sum().backward()
        lbfgs.step()


with tempfile.NamedTemporaryFile(suffix=".lock") as lock:
    arguments = stage.arguments()
    torch.set_num_threads(1)
    if arguments.strength == "masked":
        threading.Thread(target=liveness_probe, daemon=True).start()
    train(arguments, lock.name)
