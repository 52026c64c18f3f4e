"""FIELD
source: own: AlphaZero-style self-play for Hex, with a league server's quota of one block of games per minute
mechanism: each iteration plays games by tree search in Python (a forward pass per leaf) for some 30 s, trains 6 s, then
    waits until the league's quota allows the next block, 20 to 30 s; nothing is printed between iterations
needs: none
ranks: 1
onset: printed
state: healthy, busy
cause: any
blame: none
twin: none
"""
import json
import math
import pathlib
import random
import signal
import tempfile
import threading
import time
from collections import deque

import torch
from torch import nn

SIZE = 6
CELLS = SIZE * SIZE
AROUND = [(-1, 0), (-1, 1), (0, -1), (0, 1), (1, -1), (1, 0)]


def winner(board):
    """Player 1 joins top and bottom; a full board has one winner."""
    stack = [c for c in range(SIZE) if board[c] == 1]
    seen = set(stack)
    while stack:
        row, col = divmod(stack.pop(), SIZE)
        if row == SIZE - 1:
            return 1
        for dr, dc in AROUND:
            r, c = row + dr, col + dc
            if 0 <= r < SIZE and 0 <= c < SIZE and board[r * SIZE + c] == 1 and r * SIZE + c not in seen:
                seen.add(r * SIZE + c)
                stack.append(r * SIZE + c)
    return -1 if 0 not in board else 0


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(2, 32, 3, 1, 1), nn.ReLU(), nn.Conv2d(32, 32, 3, 1, 1), nn.ReLU())
        self.policy, self.value = nn.Linear(32 * CELLS, CELLS), nn.Linear(32 * CELLS, 1)

    def forward(self, x):
        h = self.trunk(x).flatten(1)
        return self.policy(h), self.value(h).tanh()


def planes(board, player):
    b = torch.tensor(board, dtype=torch.float32).view(SIZE, SIZE) * player
    return torch.stack([(b > 0).float(), (b < 0).float()])


class Node:
    __slots__ = ("children", "prior", "total", "visits")

    def __init__(self, prior):
        self.prior, self.visits, self.total, self.children = prior, 0, 0.0, {}


class Search:
    def __init__(self, net, simulations):
        self.net, self.simulations = net.eval(), simulations

    def expand(self, node, board, player):
        with torch.no_grad():
            logits, value = self.net(planes(board, player)[None])
        prior = logits[0].softmax(0).tolist()
        node.children = {c: Node(prior[c]) for c in range(CELLS) if board[c] == 0}
        return value.item()

    def visit(self, node, board, player):
        node.visits += 1
        if result := winner(board):
            value = result * player
        elif not node.children:
            value = self.expand(node, board, player)
        else:
            root = math.sqrt(node.visits)
            move, child = max(
                node.children.items(),
                key=lambda mc: -mc[1].total / (mc[1].visits or 1) + 1.5 * mc[1].prior * root / (1 + mc[1].visits),
            )
            board[move] = player
            value = -self.visit(child, board, -player)
            board[move] = 0
        node.total += value
        return value

    def play(self):
        board, player, rows = [0] * CELLS, 1, []
        while not (result := winner(board)):
            root = Node(1.0)
            for _ in range(self.simulations):
                self.visit(root, board, player)
            counts = torch.zeros(CELLS)
            for move, child in root.children.items():
                counts[move] = child.visits
            rows.append((planes(board, player), counts / counts.sum(), player))
            board[int(torch.multinomial(counts, 1))] = player
            player = -player
        return [(x, p, float(result * who)) for x, p, who in rows]


class Quota:
    def __init__(self, period):
        self.period, self.next = period, 0.0

    def acquire(self):
        time.sleep(max(0.0, self.next - time.monotonic()))
        self.next = time.monotonic() + self.period


def scoreboard(path, stats):
    while True:
        path.write_text(json.dumps(stats))
        time.sleep(5)


def iteration(net, opt, buffer, play_for, train_for, stats):
    until, search = time.monotonic() + play_for, Search(net, 40)
    while time.monotonic() < until:
        buffer.extend(search.play())
        stats["games"] += 1
    until = time.monotonic() + train_for
    net.train()
    while time.monotonic() < until:
        x, p, v = zip(*random.choices(buffer, k=64), strict=True)
        logits, value = net(torch.stack(x))
        loss = nn.functional.cross_entropy(logits, torch.stack(p)) + nn.functional.mse_loss(value[:, 0], torch.tensor(v))
        opt.zero_grad()
        loss.backward()
        opt.step()
        stats["steps"] += 1
    print(f"games {stats['games']} steps {stats['steps']} loss {loss.item():.3f}", flush=True)


def main():
    signal.alarm(300)
    torch.set_num_threads(1)
    net, buffer, stats = Net(), deque(maxlen=20_000), {"games": 0, "steps": 0}
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    with tempfile.TemporaryDirectory() as folder:
        board = pathlib.Path(folder) / "scores.json"
        threading.Thread(target=scoreboard, args=(board, stats), daemon=True).start()
        for _ in range(3):
            iteration(net, opt, buffer, 0.5, 2, stats)
        print("ONSET", flush=True)
        quota = Quota(60)
        for _ in range(100):
            quota.acquire()
            iteration(net, opt, buffer, 30, 6, stats)


if __name__ == "__main__":
    main()
