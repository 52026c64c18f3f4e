"""Before the next epoch the trainer polls for a flag file that the preprocessing job should have written."""

import os
import threading
import time

import stage
import torch

FLAG = "/var/tmp/epoch-1-preprocessed.done"


def wait_for_preprocessing(path):
    while not os.path.exists(path):
        time.sleep(0.5)


def status_page():
    while True:
        print("status: running", flush=True)
        time.sleep(1)


opts = stage.arguments()
if opts.strength == "masked":
    threading.Thread(target=status_page, daemon=True).start()
ranker = torch.nn.Sequential(torch.nn.EmbeddingBag(5000, 128), torch.nn.Linear(128, 5000))
sgd = torch.optim.SGD(ranker.parameters(), lr=0.5)
for epoch in range(3):
    if epoch:
        stage.onset()
        wait_for_preprocessing(FLAG)
    for _ in range(opts.steps):
        items = torch.randint(5000, (64, 20))
        sgd.zero_grad()
        torch.nn.functional.cross_entropy(ranker(items), items[:, 0]).backward()
        sgd.step()
