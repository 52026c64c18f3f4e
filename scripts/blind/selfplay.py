"""FIELD
source: own (AlphaZero-style training: a self-play phase between two optimisation phases)
mechanism: tree search in Python with one network evaluation per leaf plays games for minutes before the next optimisation phase
needs: cpu
ranks: 1
onset: printed
state: busy
cause: evaluating, computing_on_host
blame: none
twin: none
"""
import math
import time

import numpy as np
import torch
import torch.nn as nn

torch.set_num_threads(1)
N = 6


class PolicyValue(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(2, 48, 3, padding=1), nn.ReLU(), nn.Conv2d(48, 48, 3, padding=1), nn.ReLU(), nn.Flatten())
        self.policy, self.value = nn.Linear(48 * N * N, N * N), nn.Linear(48 * N * N, 1)

    def forward(self, x):
        h = self.trunk(x)
        return self.policy(h), torch.tanh(self.value(h)).squeeze(1)


def won(board, player):
    stones = board == player
    for dy, dx in ((0, 1), (1, 0), (1, 1), (1, -1)):
        for y in range(N):
            for x in range(N):
                if all(0 <= y + k * dy < N and 0 <= x + k * dx < N and stones[y + k * dy, x + k * dx] for k in range(4)):
                    return True
    return False


class Node:
    __slots__ = ("prior", "visits", "total", "children")

    def __init__(self, prior):
        self.prior, self.visits, self.total, self.children = prior, 0, 0.0, {}


def planes(board, player):
    return np.stack([board == player, board == -player]).astype(np.float32)


@torch.no_grad()
def expand(net, node, board, player):
    logits, value = net(torch.from_numpy(planes(board, player))[None])
    p = logits[0].softmax(0).numpy()
    for move in np.flatnonzero(board.ravel() == 0):
        node.children[int(move)] = Node(float(p[move]))
    return value.item()


def simulate(net, node, board, player):
    if not node.children:
        value = expand(net, node, board, player)
    else:
        scale = math.sqrt(node.visits + 1)
        move, child = max(node.children.items(), key=lambda mc: -mc[1].total / (mc[1].visits + 1e-9) + 1.5 * mc[1].prior * scale / (1 + mc[1].visits))
        board[divmod(move, N)] = player
        value = 1.0 if won(board, player) else 0.0 if (board != 0).all() else -simulate(net, child, board, -player)
        if not child.children:
            child.visits += 1
            child.total -= value
    node.visits += 1
    node.total += value
    return value


def self_play(net, seconds, simulations=120):
    examples, games, began = [], 0, time.time()
    while time.time() - began < seconds:
        board, player, history = np.zeros((N, N), int), 1, []
        while True:
            root = Node(1.0)
            for _ in range(simulations):
                simulate(net, root, board.copy(), player)
            visits = np.array([root.children[m].visits if m in root.children else 0 for m in range(N * N)], float)
            visits /= visits.sum()
            history.append((planes(board, player), visits.astype(np.float32), player))
            board[divmod(int(np.random.choice(N * N, p=visits)), N)] = player
            if won(board, player) or (board != 0).all():
                result = player if won(board, player) else 0
                break
            player = -player
        examples += [(x, p, float(result * who)) for x, p, who in history]
        games += 1
    return examples, games


def optimise(net, opt, examples, steps):
    for _ in range(steps):
        pick = np.random.randint(len(examples), size=64)
        x = torch.from_numpy(np.stack([examples[i][0] for i in pick]))
        p = torch.from_numpy(np.stack([examples[i][1] for i in pick]))
        z = torch.tensor([examples[i][2] for i in pick])
        logits, value = net(x)
        loss = -(p * logits.log_softmax(1)).sum(1).mean() + (value - z).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


def main():
    net = PolicyValue()
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    for iteration, seconds in enumerate([2, 400]):
        if seconds > 100:
            print("ONSET", flush=True)
        examples, games = self_play(net, seconds)
        print(f"iteration {iteration}: {games} games, {len(examples)} positions", flush=True)
        print("loss", optimise(net, opt, examples, 400), flush=True)


if __name__ == "__main__":
    main()
