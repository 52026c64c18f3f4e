"""FIELD
source: own (evolution strategies: the gradient of the main process comes from a pool that plays)
mechanism: a warm-up by imitation in the main process, then generations: a ProcessPoolExecutor of one worker plays with 40
    perturbed networks for about 20 s, the main process waits for the futures and makes one optimizer step of their scores
needs: none
ranks: 1
onset: printed
state: busy, healthy
cause: any
blame: none
twin: none
"""
import concurrent.futures as cf
import ctypes
import multiprocessing
import os
import signal
import time

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

SIGMA, MEMBERS = 0.05, 40


def make_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(27, 96), nn.Tanh(), nn.Linear(96, 9))


LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]


def winner(board):
    return next((board[a] for a, b, c in LINES if board[a] != 0 and board[a] == board[b] == board[c]), 0)


def view(board):
    board = torch.tensor(board)
    return torch.cat([(board == 1).float(), (board == -1).float(), (board == 0).float()])


@torch.inference_mode()
def play(net, rng):
    """The network moves first, a clumsy opponent answers."""
    board = [0] * 9
    for turn in range(9):
        free = [i for i in range(9) if board[i] == 0]
        if turn % 2 == 0:
            scores = net(view(board))
            move = max(free, key=lambda i: scores[i].item())
        else:
            move = int(rng.choice(free))
        board[move] = 1 if turn % 2 == 0 else -1
        if winner(board):
            return winner(board)
    return 0


def begin():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    signal.alarm(300)
    os.nice(1)
    torch.set_num_threads(1)


def rate(weights, seed, seconds):
    net, rng = make_net(), np.random.default_rng(seed)
    noise = torch.from_numpy(rng.normal(size=len(weights))).float()
    vector_to_parameters(torch.from_numpy(weights) + SIGMA * noise, net.parameters())
    until, results = time.monotonic() + seconds, []
    while time.monotonic() < until:
        results.append(play(net, rng))
    return seed, float(np.mean(results)), len(results)


def imitate(net, optimizer, seconds):
    until, rng, step = time.monotonic() + seconds, np.random.default_rng(1), 0
    centre_first = torch.tensor([4, 0, 2, 6, 8, 1, 3, 5, 7])
    while time.monotonic() < until:
        boards = torch.from_numpy(rng.integers(-1, 2, (256, 9)))
        boards[:, 0] = 0
        planes = torch.cat([boards == 1, boards == -1, boards == 0], 1).float()
        wish = centre_first[(boards[:, centre_first] == 0).float().argmax(1)]
        loss = nn.functional.cross_entropy(net(planes), wish)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
    print(f"imitation: {step} steps, loss {loss.item():.3f}", flush=True)


def generation(pool, net, optimizer, number):
    weights = parameters_to_vector(net.parameters()).detach()
    seeds = [number * MEMBERS + i for i in range(MEMBERS)]
    jobs = [pool.submit(rate, weights.numpy(), seed, 0.5) for seed in seeds]
    scores = {}
    for job in cf.as_completed(jobs):
        seed, score, _ = job.result()
        scores[seed] = score
    values = np.array([scores[s] for s in seeds])
    ranks = torch.from_numpy((values.argsort().argsort() / (MEMBERS - 1) - 0.5).astype(np.float32))
    noise = torch.stack([torch.from_numpy(np.random.default_rng(s).normal(size=len(weights))).float() for s in seeds])
    direction = (ranks[:, None] * noise).mean(0) / SIGMA
    start = 0
    for p in net.parameters():
        p.grad = -direction[start : start + p.numel()].view_as(p).clone()
        start += p.numel()
    optimizer.step()
    print(f"generation {number}: mean score {values.mean():.3f}, best {values.max():.3f}", flush=True)


if __name__ == "__main__":
    signal.alarm(300)
    torch.set_num_threads(1)
    network = make_net()
    with cf.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"), initializer=begin) as workers:
        imitate(network, torch.optim.Adam(network.parameters(), 1e-3), 16)
        adam = torch.optim.Adam(network.parameters(), 0.01)
        for number in range(1000):
            if number == 1:
                print("ONSET", flush=True)
            generation(workers, network, adam, number)
