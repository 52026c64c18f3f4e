"""FIELD
source: own (greedy decoding of the whole validation set, token by token, with a score in plain Python)
mechanism: after an epoch both ranks decode their halves of the validation set under no_grad and score n-grams, two minutes long and not equally fast; then they gather the scores
needs: none
ranks: 2
onset: printed
state: busy
cause: evaluating, computing_on_host, waiting_on_work
blame: none
twin: none
"""

import collections
import datetime
import signal
import time

import torch
import torch.distributed as dist

signal.alarm(300)
torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=30))
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
embed, cell, head = torch.nn.Embedding(500, 64), torch.nn.GRUCell(64, 128), torch.nn.Linear(128, 500)
params = [*embed.parameters(), *cell.parameters(), *head.parameters()]
opt = torch.optim.Adam(params, lr=1e-3)


def unroll(ids):
    state, loss = torch.zeros(len(ids), 128), 0.0
    for now, after in zip(ids.T, ids.T[1:]):
        state = cell(embed(now), state)
        loss = loss + torch.nn.functional.cross_entropy(head(state), after)
    return loss / (ids.shape[1] - 1)


@torch.no_grad()
def greedy(prefix, length):
    state, now, made = torch.zeros(len(prefix), 128), prefix, []
    for _ in range(length):
        state = cell(embed(now), state)
        now = head(state).argmax(-1)
        made.append(now)
    return torch.stack(made, 1).tolist()


def overlap(a, b):
    score = 0
    for n in range(1, 5):
        grams = [collections.Counter(tuple(x[i : i + n]) for i in range(len(x) - n + 1)) for x in (a, b)]
        score += sum((grams[0] & grams[1]).values())
    return score


def evaluate(seconds):
    end, scores = time.monotonic() + seconds, []
    while time.monotonic() < end:
        hypotheses = greedy(torch.randint(0, 500, (16,)), 200)
        references = torch.randint(0, 500, (16, 200)).tolist()
        scores.extend(overlap(*pair) for pair in zip(hypotheses, references))
    return sum(scores) / len(scores)


for epoch in range(10**6):
    for step in range(150):
        loss = unroll(torch.randint(0, 500, (8, 12)))
        opt.zero_grad()
        loss.backward()
        for p in params:
            dist.all_reduce(p.grad)
        opt.step()
    if rank == 0:
        print("ONSET" if epoch == 0 else "evaluating", flush=True)
    score = evaluate(120 + 15 * rank)
    scores = [None] * world
    dist.all_gather_object(scores, score)
    if rank == 0:
        print("epoch", epoch, "bleu-ish", scores, flush=True)
