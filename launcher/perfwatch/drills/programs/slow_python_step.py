"""Look-alike of an endless loop: some 15 to 20 s of pure Python in each step (a naive edit distance), but it ends."""

import random
import time

import stage
import torch


def edit_distance(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        row, above = [i], row
        for j, y in enumerate(b, 1):
            row.append(min(row[-1] + 1, above[j] + 1, above[j - 1] + (x != y)))
    return row[-1]


def word_error_rate(seconds):
    until, total = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        total += edit_distance(random.choices("abcd", k=1500), random.choices("abcd", k=1500))
    return total


options = stage.arguments()
torch.set_num_threads(2)  # also on the two threads of one core, where torch would take but one
ctc = torch.nn.Linear(80, 2048)
optimizer = torch.optim.SGD(ctc.parameters(), lr=0.1)
warm_up = 100 * options.steps  # long enough for the compute threads to remember it, beside the imports
for step in range(10**6):
    if step == warm_up:
        stage.onset()
    reward = word_error_rate(0 if step < warm_up else random.uniform(15, 20))
    optimizer.zero_grad()
    (ctc(torch.randn(256, 80)).mean() * reward).backward()
    optimizer.step()
