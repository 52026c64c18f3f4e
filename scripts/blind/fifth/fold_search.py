"""FIELD
source: optuna/optuna#3379 and #841 ("seems stuck, the terminal does not print any information": the trials were running)
mechanism: after a short fit of the base model the study starts: each trial is a 5-fold cross-validation of a small
    ensemble in a forked process, some two minutes; the parent only reads the pipe of the trial
needs: none
ranks: 1
onset: printed
state: busy, healthy
cause: waiting_on_work, cpu_training, balanced
blame: none
twin: none
"""
import ctypes
import multiprocessing as mp
import random
import signal
import time

import numpy as np
import torch
from torch import nn

mp_context = mp.get_context("fork")


def make_data(rows=4000, columns=40):
    rng = np.random.default_rng(7)
    x = rng.normal(size=(rows, columns)).astype(np.float32)
    y = np.sin(x[:, 0] * 2) + x[:, 1] * x[:, 2] + 0.1 * rng.normal(size=rows)
    return torch.from_numpy(x), torch.from_numpy(y.astype(np.float32))[:, None]


def build(params, columns):
    layers, width = [], columns
    for _ in range(params["depth"]):
        layers += [nn.Linear(width, params["width"]), nn.SiLU(), nn.Dropout(params["dropout"])]
        width = params["width"]
    return nn.Sequential(*layers, nn.Linear(width, 1))


def fit(model, x, y, lr, epochs, log=None):
    opt = torch.optim.AdamW(model.parameters(), lr)
    for epoch in range(epochs):
        model.train()
        for rows in torch.randperm(len(x)).split(64):
            loss = nn.functional.mse_loss(model(x[rows]), y[rows])
            opt.zero_grad()
            loss.backward()
            opt.step()
        if log:
            log(epoch, loss.item())
    return model.eval()


def cross_validate(pipe, params, x, y, folds=5, members=3):
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    signal.alarm(300)
    torch.set_num_threads(1)
    torch.manual_seed(params["number"])
    parts, errors = torch.arange(len(x)).chunk(folds), []
    for k in range(folds):
        train = torch.cat([p for i, p in enumerate(parts) if i != k])
        ensemble = [fit(build(params, x.shape[1]), x[train], y[train], params["lr"], 60) for _ in range(members)]
        with torch.no_grad():
            mean = torch.stack([m(x[parts[k]]) for m in ensemble]).mean(0)
        errors.append(nn.functional.mse_loss(mean, y[parts[k]]).item())
    pipe.send(sum(errors) / folds)


class Study:
    def __init__(self, seed=0):
        self.rng, self.trials = random.Random(seed), []

    def ask(self):
        return {
            "number": len(self.trials),
            "lr": 10 ** self.rng.uniform(-3.5, -2),
            "width": self.rng.choice([128, 192, 256]),
            "depth": self.rng.choice([2, 3]),
            "dropout": self.rng.uniform(0, 0.3),
        }

    def optimize(self, objective, n_trials):
        for _ in range(n_trials):
            params = self.ask()
            value = objective(params)
            self.trials.append((value, params))
            if value == min(self.trials, key=lambda t: t[0])[0]:
                print(f"new best {value:.4f} with {params}", flush=True)


def main():
    signal.alarm(300)
    torch.set_num_threads(1)
    x, y = make_data()
    began = time.time()
    base = build({"depth": 2, "width": 64, "dropout": 0.0}, x.shape[1])
    while time.time() - began < 8:
        fit(base, x, y, 1e-3, 2, log=lambda epoch, loss: print(f"base loss {loss:.4f}", flush=True))

    def objective(params):
        ours, theirs = mp_context.Pipe()
        trial = mp_context.Process(target=cross_validate, args=(theirs, params, x, y), daemon=True)
        trial.start()
        theirs.close()
        value = ours.recv()
        trial.join()
        return value

    print("starting the study, 40 trials", flush=True)
    print("ONSET", flush=True)
    Study().optimize(objective, 40)


if __name__ == "__main__":
    main()
