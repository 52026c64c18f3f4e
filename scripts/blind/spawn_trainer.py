"""FIELD
source: own (sweep controllers that train in a spawned child so that its memory is returned at the end)
mechanism: the parent waits in Queue.get() for the metrics of an epoch, one a minute, while the spawned child trains
needs: cpu
ranks: 1
onset: printed
state: healthy, busy
cause: cpu_training, balanced, waiting_on_work
blame: none
twin: none
"""
import multiprocessing as mp
import queue
import time

import torch
import torch.nn as nn


def train(config, reports):
    torch.set_num_threads(1)
    torch.manual_seed(config["seed"])
    model = nn.GRU(32, config["hidden"], batch_first=True)
    head = nn.Linear(config["hidden"], 32)
    opt = torch.optim.Adam([*model.parameters(), *head.parameters()], lr=config["lr"])
    for epoch, seconds in enumerate(config["epochs"]):
        until, losses = time.time() + seconds, []
        while time.time() < until:
            x = torch.randn(32, 60, 32).cumsum(1) * 0.1
            h, _ = model(x[:, :-1])
            loss = (head(h) - x[:, 1:]).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            losses.append(loss.item())
        reports.put({"epoch": epoch, "loss": sum(losses) / len(losses), "steps": len(losses)})
    reports.put(None)


def main():
    context = mp.get_context("spawn")
    reports = context.Queue()
    config = {"seed": 1, "hidden": 128, "lr": 2e-3, "epochs": [4, 4] + [60] * 7}
    child = context.Process(target=train, args=(config, reports), name="trial-1")
    child.start()
    best = None
    while True:
        try:
            report = reports.get(timeout=600)
        except queue.Empty:
            raise SystemExit(f"trial ended with {child.exitcode}")
        if report is None:
            break
        best = min(best or report["loss"], report["loss"])
        print(report, "best", round(best, 4), flush=True)
        if report["epoch"] == 1:
            print("ONSET", flush=True)
    child.join()


if __name__ == "__main__":
    main()
