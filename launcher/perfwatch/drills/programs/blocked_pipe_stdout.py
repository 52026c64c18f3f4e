"""``train.py | pager``: the pager has stopped reading; the log line that no longer fits blocks the training thread."""

import os
import threading

import stage
import torch


def pager(incoming):
    os.read(incoming, 100)  # shows the first screen, then waits for a key
    threading.Event().wait()


def pipe_stdout_into_a_pager():
    incoming, outgoing = os.pipe()
    stage.outsider(lambda: (os.close(outgoing), pager(incoming)))
    os.close(incoming)
    os.dup2(outgoing, 1)
    os.close(outgoing)


def log(step, loss):
    if step == 20:
        stage.onset()
    print(f"step {step} loss {loss:.4f} " + "." * (100 if step < 20 else 9_000), flush=True)


def fit(steps):
    model = torch.nn.Linear(640, 640)
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(10**6):
        loss = model(torch.randn(128, 640)).exp().mean()
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        log(step - steps + 20, loss.item())


cli = stage.arguments()
torch.set_num_threads(1)
pipe_stdout_into_a_pager()
if cli.strength == "masked":
    threading.Thread(
        target=lambda: [sum(range(9_999)) for _ in iter(lambda: threading.Event().wait(0.1), 1)], daemon=True
    ).start()
fit(cli.steps)
