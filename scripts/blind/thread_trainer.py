"""FIELD
source: own (GUI-style trainers run the loop in a thread; heartbeat, log and sampling threads and an interval timer beside it)
mechanism: training runs in a thread while the main thread waits in join(); a watchdog, a log writer, a stack sampler and SIGALRM ticks run beside it
needs: cpu
ranks: 1
onset: printed
state: healthy
cause: cpu_training, balanced
blame: none
twin: none
"""
import collections
import logging
import logging.handlers
import queue
import signal
import sys
import threading
import time

import torch
import torch.nn as nn

torch.set_num_threads(1)


class Watchdog(threading.Thread):
    def __init__(self, limit):
        super().__init__(daemon=True, name="watchdog")
        self.limit, self.last = limit, time.monotonic()

    def beat(self):
        self.last = time.monotonic()

    def run(self):
        while True:
            time.sleep(1)
            if time.monotonic() - self.last > self.limit:
                logging.warning("no step for %.0f s", time.monotonic() - self.last)


class Sampler(threading.Thread):
    def __init__(self, target):
        super().__init__(daemon=True, name="sampler")
        self.target, self.counts = target, collections.Counter()

    def run(self):
        while True:
            time.sleep(0.05)
            frame = sys._current_frames().get(self.target.ident)
            if frame is not None:
                self.counts[frame.f_code.co_name] += 1


def fit(watchdog, minutes):
    model = nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 10))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    began, step, announced = time.time(), 0, False
    while time.time() - began < 60 * minutes:
        x = torch.randn(256, 512)
        loss = nn.functional.cross_entropy(model(x), x[:, :10].argmax(1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        watchdog.beat()
        step += 1
        if step % 100 == 0:
            logging.info("step %d loss %.4f", step, loss.item())
        if not announced and time.time() - began > 8:
            print("ONSET", flush=True)
            announced = True


def main():
    records = queue.Queue()
    logging.basicConfig(level=logging.INFO, handlers=[logging.handlers.QueueHandler(records)])
    listener = logging.handlers.QueueListener(records, logging.StreamHandler(sys.stdout))
    listener.start()
    ticks = []
    signal.signal(signal.SIGALRM, lambda *_: ticks.append(time.monotonic()))
    signal.setitimer(signal.ITIMER_REAL, 2.0, 2.0)
    watchdog = Watchdog(60)
    trainer = threading.Thread(target=fit, args=(watchdog, 7.5), name="trainer")
    watchdog.start()
    trainer.start()
    sampler = Sampler(trainer)
    sampler.start()
    trainer.join()
    signal.setitimer(signal.ITIMER_REAL, 0)
    logging.info("%d ticks, %s", len(ticks), sampler.counts.most_common(3))
    listener.stop()


if __name__ == "__main__":
    main()
