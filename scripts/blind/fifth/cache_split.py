"""FIELD
source: huggingface/datasets#3983, audeering/audb#497 (loading waits for ever for a leftover .lock file in a shared cache)
mechanism: before its first validation the program prepares the validation split in a shared cache; a preempted job on another node left the soft lock there, and the loader polls for it for ever
needs: none
ranks: 1
onset: printed
state: hung
cause: waiting_for_file
blame: none
twin: none
"""

import argparse
import contextlib
import logging
import pathlib
import signal
import tempfile
import time

import numpy as np
import torch
from filelock import SoftFileLock
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
log = logging.getLogger("finetune")


def synthesize(split, rows):
    rng = np.random.default_rng(len(split))
    x = rng.standard_normal((rows, 3, 16, 16)).astype(np.float32)
    return x, (x.mean((1, 2, 3)) > 0).astype(np.int64)


def prepare_split(cache, split, rows):
    """Builds the split once for all jobs that share the cache, and opens it."""
    target = cache / f"shapes-{split}.npz"
    with SoftFileLock(f"{target}.lock"):
        if not target.exists():
            log.info("building %s", target.name)
            x, y = synthesize(split, rows)
            np.savez(target, x=x, y=y)
    with np.load(target) as data:
        return TensorDataset(torch.from_numpy(data["x"]), torch.from_numpy(data["y"]))


def leftovers(cache):
    """What the job that was preempted last night left behind."""
    (cache / "shapes-validation.npz.lock").write_text("48211\ngpu-node-17\n")


def net():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 2),
    )


def run(args, cache):
    model = net()
    opt = torch.optim.AdamW(model.parameters(), args.lr)
    train = DataLoader(prepare_split(cache, "train", 2048), args.batch, shuffle=True)
    step, begin = 0, time.monotonic()
    for epoch in range(1000):
        model.train()
        for x, y in train:
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if step % 25 == 0:
                log.info("step %d loss %.4f", step, loss.item())
            time.sleep(0.01)
        if time.monotonic() - begin > 9:
            log.info("epoch %d: validation", epoch)
            print("ONSET", flush=True)
            valid = DataLoader(prepare_split(cache, "validation", 512), args.batch)
            model.eval()
            with torch.no_grad():
                hits = sum((model(x).argmax(1) == y).sum().item() for x, y in valid)
            log.info("accuracy %.3f", hits / 512)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--batch", type=int, default=64)
    args = parser.parse_args()
    signal.alarm(300)
    torch.set_num_threads(1)
    with contextlib.ExitStack() as stack:
        cache = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        leftovers(cache)
        run(args, cache)


if __name__ == "__main__":
    main()
