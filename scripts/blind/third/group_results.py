"""FIELD
source: https://github.com/OpenPipe/ART/pull/429
mechanism: results of the last step were never marked as done, so join() of the results queue, between two steps, never returns; the service thread that filled it waits for the next request
needs: none
ranks: 1
onset: printed
state: hung
cause: deadlocked_locks, unknown
blame: train_step (joins the queue)
twin: none
"""
import queue
import signal
import threading

import torch

signal.alarm(300)
torch.set_num_threads(1)


class Service(threading.Thread):
    """Trains in a thread of its own, hands metrics back."""

    def __init__(self):
        super().__init__(daemon=True)
        self.inputs, self.results = queue.Queue(), queue.Queue()
        self.model = torch.nn.Sequential(torch.nn.Linear(96, 384), torch.nn.ReLU(), torch.nn.Linear(384, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)

    def run(self):
        while True:
            batch, target = self.inputs.get()
            loss = (self.model(batch).squeeze(1) - target).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.results.put({"loss": loss.item()})
            if loss.item() < 0.98:
                self.results.put({"early": True})


class Backend:
    def __init__(self):
        self.service = Service()
        self.service.start()
        self.steps = 0

    def train_step(self, groups):
        self.steps += 1
        for group in groups:
            self.service.inputs.put((group, group.sum(1) / 96**0.5))
            metrics = self.service.results.get()
            self.service.results.task_done()
        if self.steps == 90:
            self.service.results.put({"early": True})  # a late straggler of the step before
            print("ONSET", flush=True)
        if self.steps <= 90:
            while self.steps < 90 and self.service.results.unfinished_tasks:
                self.service.results.get()
                self.service.results.task_done()
            self.service.results.join()
        return metrics


backend = Backend()
for iteration in range(10**6):
    metrics = backend.train_step([torch.randn(512, 96) for _ in range(8)])
    if iteration % 10 == 0:
        print(iteration, metrics, flush=True)
