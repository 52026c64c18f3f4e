"""FIELD
source: https://github.com/open-mmlab/mmsegmentation/issues/66 and https://github.com/facebookresearch/mega/issues/17 ("stuck" in an evaluation that merely takes long); the self-play is own
mechanism: every few hundred steps the policy is evaluated by playing games under no_grad for seven minutes; the model runs all the time, the optimizer does not
needs: cpu
ranks: 1
onset: printed
state: busy
cause: evaluating
blame: none
twin: none
"""
import time

import torch
import torch.nn as nn


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(2, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU())
        self.move = nn.Linear(32 * 36, 36)

    def forward(self, board):
        return self.move(self.trunk(board).flatten(1))


def full(board):
    return board.sum((1, 2, 3)) >= 36


def play(policy, n):
    """n games of both sides at once; a side scores its longest row."""
    board = torch.zeros(n, 2, 6, 6)
    for turn in range(36):
        side = turn % 2
        taken = board.sum(1).flatten(1) > 0
        logits = policy(board if side == 0 else board.flip(1)).masked_fill(taken, -1e9)
        move = torch.distributions.Categorical(logits=logits).sample()
        board[torch.arange(n), side, move // 6, move % 6] = 1
    assert full(board).all()
    return (board.sum(3).amax(2)[:, 0] > board.sum(3).amax(2)[:, 1]).float().mean().item()


def evaluate(policy, minutes):
    policy.eval()
    scores, end = [], time.monotonic() + 60 * minutes
    with torch.no_grad():
        while time.monotonic() < end:
            scores.append(play(policy, 64))
    policy.train()
    return sum(scores) / len(scores), len(scores) * 64


def main():
    torch.set_num_threads(1)
    policy = Policy()
    opt = torch.optim.Adam(policy.parameters(), lr=1e-3)
    for step in range(3000):
        board = (torch.rand(64, 2, 6, 6) > 0.7).float()
        loss = nn.functional.cross_entropy(policy(board), board[:, 0].flatten(1).argmax(1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 100 == 0:
            print("step", step, "loss", loss.item(), flush=True)
        if step == 1500:
            print("ONSET", flush=True)
            print("score %.3f in %d games" % evaluate(policy, minutes=7), flush=True)


if __name__ == "__main__":
    main()
