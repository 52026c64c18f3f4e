"""Look-alike of a stale lock: another process of this job builds the index under flock for 40 s, visibly working; we
wait.
"""

import fcntl
import hashlib
import multiprocessing
import tempfile
import time

import stage
import torch


def build_index(folder, entered):
    with open(f"{folder}/index.lock", "w") as lock, open(f"{folder}/index", "wb") as index:
        fcntl.flock(lock, fcntl.LOCK_EX)
        entered.set()
        until = time.monotonic() + 40
        while time.monotonic() < until:
            index.write(hashlib.pbkdf2_hmac("sha1", b"document", b"", 50_000))
            index.flush()


def wait_for_index(folder):
    with open(f"{folder}/index.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


def rounds(steps, folder):
    gru = torch.nn.GRU(64, 64)
    adamw = torch.optim.AdamW(gru.parameters())
    while True:
        for _ in range(steps):
            adamw.zero_grad()
            gru(torch.randn(20, 16, 64))[0].mean().backward()
            adamw.step()
        entered = multiprocessing.Event()
        multiprocessing.Process(target=build_index, args=(folder, entered), daemon=True).start()
        entered.wait()
        stage.onset()
        wait_for_index(folder)


torch.set_num_threads(1)
with tempfile.TemporaryDirectory() as place:
    rounds(stage.arguments().steps, place)
