"""Look-alike of a deadlock: the trainer waits 6 to 9 s for a lock again and again, and its owner works and gives it
back.
"""

import hashlib
import random
import threading
import time

import stage
import torch

replay_lock = threading.Lock()


def compact_replay_buffer(begin):
    begin.wait()
    while True:
        with replay_lock:
            until = time.monotonic() + random.uniform(6, 9)
            while time.monotonic() < until:
                hashlib.pbkdf2_hmac("sha256", b"replay", b"buffer", 20_000)
        time.sleep(0.2)


def learner(steps):
    begin = threading.Event()
    threading.Thread(target=compact_replay_buffer, args=(begin,), daemon=True).start()
    q = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 4))
    opt = torch.optim.Adam(q.parameters())
    for n in range(10**6):
        if n == steps:
            begin.set()
            stage.onset()
        with replay_lock:
            states = torch.randn(256, 64)
        opt.zero_grad()
        q(states).max(1).values.mean().backward()
        opt.step()
        time.sleep(0.05)


torch.set_num_threads(1)
learner(stage.arguments().steps)
