"""A catastrophic regular expression in the training thread: one native call that owns the GIL, for ever; a logger waits
for it.
"""

import re
import threading
import time

import stage
import torch

EMAIL = re.compile(r"^(([a-z])+.)+[A-Z]([a-z])+$")


def clean(text):
    return bool(EMAIL.match(text))


def log_metrics():
    while True:
        time.sleep(0.1)


def epoch(net, optimizer, steps):
    for n in range(10**6):
        text = "a" * 12
        if n == steps:
            stage.onset()
            text = "a" * 80
        label = torch.full((64,), float(clean(text)))
        loss = torch.nn.functional.mse_loss(net(torch.randn(64, 800)).mean(1), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


arguments = stage.arguments()
threading.Thread(target=log_metrics, daemon=True).start()
head = torch.nn.Linear(800, 800)
epoch(head, torch.optim.SGD(head.parameters(), 0.01), arguments.steps)
