"""FIELD
source: Delgan/loguru#837, natefinch/lumberjack#55 (nothing can log while the rotated file is compressed)
mechanism: a telemetry thread writes many debug records through the handler that the trainer also uses; at each rollover it
    compresses the old file with the handler's lock held, and the trainer's one line per step waits for that lock
needs: none
ranks: 1
onset: printed
state: slow
cause: contended_lock, slow_output
blame: telemetry
twin: none
"""

import logging
import logging.handlers
import lzma
import os
import random
import signal
import tempfile
import threading
import time

import torch
from torch import nn


def pack(source, target):
    with open(source, "rb") as plain, lzma.open(target, "wb", preset=6) as packed:
        packed.write(plain.read())
    os.unlink(source)


def set_up(folder):
    handler = logging.handlers.RotatingFileHandler(os.path.join(folder, "run.log"), maxBytes=1_200_000, backupCount=2)
    handler.namer = lambda name: f"{name}.xz"
    handler.rotator = pack
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    return root


def telemetry(stop):
    log = logging.getLogger("telemetry")
    rng = random.Random(3)
    while not stop.is_set():
        if not log.isEnabledFor(logging.DEBUG):
            time.sleep(0.5)
            log.info("host is fine, load %.2f", os.getloadavg()[0])
            continue
        for _ in range(150):
            log.debug("counters %s", " ".join(f"{rng.random():.9f}" for _ in range(40)))
        time.sleep(0.002)


def main():
    signal.alarm(300)
    torch.set_num_threads(1)
    stop = threading.Event()
    with tempfile.TemporaryDirectory() as folder:
        root = set_up(folder)
        threading.Thread(target=telemetry, args=(stop,), daemon=True, name="telemetry").start()
        log = logging.getLogger("train")
        model = nn.LSTM(24, 96, batch_first=True)
        head = nn.Linear(96, 24)
        opt = torch.optim.Adam([*model.parameters(), *head.parameters()], 1e-3)
        start, step = time.monotonic(), 0
        while True:
            if root.level == logging.INFO and time.monotonic() - start > 15:
                root.setLevel(logging.DEBUG)
                print("log level: debug")
                print("ONSET", flush=True)
            wave = torch.sin(torch.arange(41).view(1, -1, 1) * torch.rand(16, 1, 24) + torch.rand(16, 1, 24))
            guess, _ = model(wave[:, :-1])
            loss = nn.functional.mse_loss(head(guess), wave[:, 1:])
            opt.zero_grad()
            loss.backward()
            opt.step()
            log.info("step %d loss %.5f", step, loss.item())
            step += 1
            if step % 50 == 0:
                print(f"{time.monotonic() - start:6.1f} s, step {step}", flush=True)


if __name__ == "__main__":
    main()
