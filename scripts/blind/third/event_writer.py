"""FIELD
source: https://github.com/tensorflow/tensorboard/issues/6167
mechanism: the background thread of an event writer ends with an exception; its bounded queue fills, and the training thread blocks in put
needs: none
ranks: 1
onset: printed
state: hung
cause: deadlocked_locks, unknown
blame: add_scalar (puts into a full queue)
twin: none
"""
import json
import queue
import signal
import tempfile
import threading

import torch
from torch import nn

signal.alarm(300)
torch.set_num_threads(1)


class EventsLogger(threading.Thread):
    def __init__(self, events, file):
        super().__init__(name="events-writer", daemon=True)
        self.events, self.file = events, file

    def run(self):
        while True:
            tag, value, step = self.events.get()
            self.file.write(json.dumps({"tag": tag, "value": value, "step": step}, allow_nan=False) + "\n")


class SummaryWriter:
    def __init__(self, max_queue=20):
        self.events = queue.Queue(max_queue)
        self.thread = EventsLogger(self.events, tempfile.TemporaryFile("w"))
        self.thread.start()

    def add_scalar(self, tag, value, step):
        self.events.put((tag, value, step))


def main():
    writer = SummaryWriter()
    net = nn.LSTM(32, 96, batch_first=True)
    head = nn.Linear(96, 32)
    optimizer = torch.optim.Adam([*net.parameters(), *head.parameters()], lr=1e-3)
    for step in range(10**6):
        x = torch.randn(16, 24, 32)
        hidden, _ = net(x[:, :-1])
        loss = (head(hidden) - x[:, 1:]).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = float("nan") if step == 200 else loss.item()
        if step == 221:
            print("ONSET", flush=True)
        writer.add_scalar("loss/train", value, step)
        if step % 20 == 0:
            print("step", step, flush=True)


main()
