"""FIELD
source: own (an evaluation thread that holds the weights' lock for the whole of each evaluation)
mechanism: a thread evaluates the averaged weights again and again under the lock that each training step takes, so a few steps run every five seconds
needs: cpu
ranks: 1
onset: printed
state: slow
cause: contended_lock
blame: none
twin: none
"""
import copy
import threading
import time

import torch
import torch.nn as nn

torch.set_num_threads(1)


class SharedWeights:
    def __init__(self, model, decay=0.999):
        self.model, self.average, self.decay = model, copy.deepcopy(model), decay
        self.lock = threading.RLock()

    @torch.no_grad()
    def update(self):
        for a, p in zip(self.average.parameters(), self.model.parameters()):
            a.lerp_(p, 1 - self.decay)


class Evaluator(threading.Thread):
    def __init__(self, shared, interval, seconds):
        super().__init__(name="evaluator", daemon=True)
        self.shared, self.interval, self.seconds = shared, interval, seconds
        self.history, self.quit = [], threading.Event()

    @torch.no_grad()
    def evaluate(self):
        with self.shared.lock:
            began, losses = time.time(), []
            while time.time() - began < self.seconds:
                x = torch.randn(512, 200)
                losses.append((self.shared.average(x) - x[:, :10]).pow(2).mean().item())
            return sum(losses) / len(losses)

    def run(self):
        while not self.quit.wait(self.interval):
            self.history.append(self.evaluate())
            print(f"eval {len(self.history)} loss {self.history[-1]:.4f}", flush=True)


def main():
    model = nn.Sequential(nn.Linear(200, 800), nn.ReLU(), nn.Linear(800, 800), nn.ReLU(), nn.Linear(800, 10))
    shared = SharedWeights(model)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    evaluator, began, step = None, time.time(), 0
    while time.time() - began < 450:
        x = torch.randn(256, 200)
        with shared.lock:
            loss = (model(x) - x[:, :10]).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            shared.update()
        step += 1
        if evaluator is None and time.time() - began > 9:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
            evaluator = Evaluator(shared, interval=0.2, seconds=6)
            evaluator.start()
            print("ONSET", flush=True)
    evaluator.quit.set()
    evaluator.join()
    print(step, "steps", flush=True)


if __name__ == "__main__":
    main()
