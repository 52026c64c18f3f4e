"""FIELD
source: own, after CPython's documentation of managers (the lock of a manager does not know who holds it)
mechanism: bidders simulate an energy market and add their trades to a managed list under Manager().Lock(); a bidder is killed
    between acquire and release, the manager keeps the lock taken, and the trainer's next acquire is never answered
needs: none
ranks: 1
onset: printed
state: hung
cause: deadlocked_locks, dead_worker, blocked_network, blocked_child
blame: none
twin: none
"""
import ctypes
import itertools
import multiprocessing as mp
import os
import random
import signal
import time
from functools import partial

import torch
from torch import nn, optim


def guard():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    signal.alarm(300)


def clear(bids):
    """The price at which demand meets supply."""
    ordered = sorted(bids)
    return ordered[len(ordered) // 2]


def bidder(book, lock, seed, dies_at):
    guard()
    rng, born = random.Random(seed), time.monotonic()
    for hour in itertools.count():
        load = [rng.gauss(50, 12) + 10 * (hour % 24 > 17) for _ in range(12)]
        trade = [*load, clear([x * rng.uniform(0.8, 1.2) for x in load])]
        with lock:
            if time.monotonic() - born > dies_at:
                print("ONSET", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)  # an operator tidies up what looks like a stray process
            book.append(trade)
        time.sleep(0.02)


def take(book, lock):
    with lock:
        fresh = book[:]
        del book[:]
    return fresh


def make_step(model, opt):
    scheduler = optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, 200)

    def step(rows):
        x, y = rows[:, :12] / 50 - 1, rows[:, 12:] / 50 - 1
        loss = nn.functional.smooth_l1_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        scheduler.step()
        return loss.item()

    return step


def run(manager):
    book, lock = manager.list(), manager.Lock()
    start = partial(mp.get_context("fork").Process, target=bidder, daemon=True)
    for seed, dies_at in enumerate([10**9, 15.0, 10**9]):
        start(args=(book, lock, seed, dies_at), name=f"bidder-{seed}").start()
    model = nn.Sequential(nn.Linear(12, 320), nn.Mish(), nn.Linear(320, 320), nn.Mish(), nn.Linear(320, 1))
    step = make_step(model, optim.NAdam(model.parameters(), 1e-3))
    history = torch.empty(0, 13)
    for turn in itertools.count(1):
        fresh = take(book, lock)
        if fresh:
            history = torch.cat([history, torch.tensor(fresh)])[-5000:]
        if len(history) < 64:
            time.sleep(0.1)
            continue
        losses = [step(history[torch.randint(0, len(history), (128,))]) for _ in range(10)]
        if turn % 20 == 0:
            print(f"{turn:5d} trades {len(history)} loss {sum(losses) / 10:.4f}", flush=True)


if __name__ == "__main__":
    signal.alarm(300)
    torch.set_num_threads(1)
    with mp.get_context("fork").Manager() as manager:
        run(manager)
