"""A hand-made loader: one process feeds a queue, dies without a word, and the trainer's ``get`` has no timeout."""

import os
import threading
import time

import stage
import torch
import torch.multiprocessing as mp


def producer(outbox, limit):
    torch.set_num_threads(1)
    for n in range(limit):
        outbox.put(torch.full((32, 128), float(n)).numpy())
    time.sleep(0.3)  # let the queue's feeder drain
    stage.onset()
    os._exit(11)


def beat():
    while True:
        threading.Event().wait(1.0)
        print("still training", time.strftime("%X"), flush=True)


class Trainer:
    def __init__(self, inbox):
        self.inbox = inbox
        self.net = torch.nn.Linear(128, 128)
        self.opt = torch.optim.SGD(self.net.parameters(), 1e-3)

    def next_batch(self):
        return torch.from_numpy(self.inbox.get())

    def run(self):
        while True:
            x = self.next_batch()
            self.opt.zero_grad()
            self.net(x).sum().backward()
            self.opt.step()
            time.sleep(0.01)


if __name__ == "__main__":
    cli = stage.arguments()
    torch.set_num_threads(1)
    queue = mp.Queue(4)
    mp.Process(target=producer, args=(queue, cli.steps), daemon=True).start()
    if cli.strength == "masked":
        threading.Thread(target=beat, daemon=True).start()
    Trainer(queue).run()
