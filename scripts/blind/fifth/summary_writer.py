"""FIELD
source: wandb/wandb#3223 (the logger stalls the training loop); own: the writer thread dies of a disk error, its queue is bounded
mechanism: the event writer's background thread ends with an exception; the queue before it fills up, and the training thread waits in put() for ever
needs: none
ranks: 1
onset: printed
state: hung
cause: unknown, deadlocked_locks
blame: add_scalar ()
twin: none
"""

import errno
import os
import queue
import signal
import struct
import tempfile
import threading
import time

import psutil
import torch
from torch import nn


class EventWriter(threading.Thread):
    def __init__(self, folder, quota, capacity=30):
        super().__init__(name="event-writer", daemon=True)
        self.file = open(os.path.join(folder, "events.bin"), "wb")
        self.inbox = queue.Queue(capacity)
        self.left = quota
        self.start()

    def run(self):
        while True:
            tag, value, step = self.inbox.get()
            record = struct.pack("<16sdq", tag.encode()[:16], value, step)
            if len(record) > self.left:
                raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), self.file.name)
            self.left -= len(record)
            self.file.write(record)
            self.file.flush()
            self.inbox.task_done()


class SummaryWriter:
    def __init__(self, folder, quota):
        self._events = EventWriter(folder, quota)
        self._told = False

    def add_scalar(self, tag, value, step):
        if self._events.inbox.full() and not self._events.is_alive() and not self._told:
            self._told = True
            print("ONSET", flush=True)
        self._events.inbox.put((tag, float(value), step))


def system_stats(box, stop):
    """Reads the load of this process every two seconds, for the progress line."""
    me = psutil.Process()
    while not stop.wait(2):
        box["rss"] = me.memory_info().rss / 2**20
        box["cpu"] = me.cpu_percent()


def gan_step(gen, disc, g_opt, d_opt, real):
    noise = torch.randn(len(real), 16)
    fake = gen(noise)
    bce = nn.functional.binary_cross_entropy_with_logits
    ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
    d_loss = bce(disc(real), ones) + bce(disc(fake.detach()), zeros)
    d_opt.zero_grad()
    d_loss.backward()
    d_opt.step()
    g_loss = bce(disc(fake), ones)
    g_opt.zero_grad()
    g_loss.backward()
    g_opt.step()
    return d_loss.item(), g_loss.item()


def main():
    signal.alarm(300)
    torch.set_num_threads(1)
    box, stop = {"rss": 0.0, "cpu": 0.0}, threading.Event()
    threading.Thread(target=system_stats, args=(box, stop), name="system-stats", daemon=True).start()
    gen = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))
    disc = nn.Sequential(nn.Linear(2, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1))
    g_opt = torch.optim.Adam(gen.parameters(), 2e-4, betas=(0.5, 0.9))
    d_opt = torch.optim.Adam(disc.parameters(), 2e-4, betas=(0.5, 0.9))
    with tempfile.TemporaryDirectory() as folder:
        writer = SummaryWriter(folder, quota=32 * 700)
        for step in range(10**7):
            angle = torch.rand(64, 1) * 6.2832
            real = torch.cat([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(64, 2)
            d_loss, g_loss = gan_step(gen, disc, g_opt, d_opt, real)
            writer.add_scalar("loss/d", d_loss, step)
            writer.add_scalar("loss/g", g_loss, step)
            if step % 50 == 0:
                print(f"{step} d {d_loss:.3f} g {g_loss:.3f} rss {box['rss']:.0f} MB cpu {box['cpu']:.0f}%", flush=True)
            time.sleep(0.02)


if __name__ == "__main__":
    main()
