"""FIELD
source: google-deepmind/open_spiel#318, actors of AlphaZero that never join because their last trajectories are still in the queue, rebuilt as a sweep over learning rates
mechanism: at the end of a setting the learner sets the stop flag and joins its actors without emptying the queue: each actor is at its exit,
    where it waits for the feeder thread, which writes a trajectory larger than the pipe that no process reads; the next setting never starts
needs: none
ranks: 1
onset: printed
state: hung
cause: blocked_child,blocked_pipe,stuck_worker
blame: none
twin: none
"""
import multiprocessing as mp
import signal
import sqlite3
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

COLUMNS, ROWS = 7, 6


@dataclass
class Setting:
    lr: float
    seconds: float


class Board:
    def __init__(self):
        self.cells = np.zeros((2, ROWS, COLUMNS), np.float32)
        self.height = [0] * COLUMNS
        self.turn = 0

    def free(self):
        return [c for c in range(COLUMNS) if self.height[c] < ROWS]

    def drop(self, column):
        row = self.height[column]
        self.cells[self.turn, row, column] = 1
        self.height[column] += 1
        won = self._line(row, column)
        self.turn ^= 1
        return won

    def _line(self, row, column):
        mine = self.cells[self.turn]
        for dr, dc in ((0, 1), (1, 0), (1, 1), (1, -1)):
            n = 1
            for sign in (1, -1):
                r, c = row + sign * dr, column + sign * dc
                while 0 <= r < ROWS and 0 <= c < COLUMNS and mine[r, c]:
                    n, r, c = n + 1, r + sign * dr, c + sign * dc
            if n >= 4:
                return True
        return False


def actor(number, queue, stop):
    signal.alarm(310)
    rng = np.random.default_rng(number)
    while not stop.is_set():
        states, values = [], []
        while len(states) < 400:  # several games make one trajectory
            board, seen, result = Board(), [], 0
            while moves := board.free():
                seen.append(board.cells.copy())
                time.sleep(0.001)  # the referee
                if board.drop(int(rng.choice(moves))):
                    result = 1
                    break
            states += seen
            values += [result * (-1) ** (len(seen) - 1 - i) for i in range(len(seen))]
        queue.put((np.stack(states), np.array(values, np.float32)))
    print(f"actor-{number} exiting", flush=True)


def learner(setting):
    queue, stop = mp.Queue(), mp.Event()
    actors = [mp.Process(target=actor, args=(i, queue, stop)) for i in range(2)]
    for p in actors:
        p.start()
    net = nn.Sequential(nn.Conv2d(2, 32, 3, padding=1), nn.ReLU(), nn.Flatten(),
                        nn.Linear(32 * ROWS * COLUMNS, 64), nn.ReLU(), nn.Linear(64, 1), nn.Tanh())
    opt = torch.optim.SGD(net.parameters(), lr=setting.lr, momentum=0.9)
    until, steps = time.monotonic() + setting.seconds, 0
    while time.monotonic() < until:
        states, values = queue.get()
        x, y = torch.from_numpy(states), torch.from_numpy(values)
        for part in torch.randperm(len(x)).repeat(4).split(64):
            loss = (net(x[part])[:, 0] - y[part]).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            steps += 1
    print(f"lr {setting.lr}: {steps} steps, loss {loss.item():.3f}", flush=True)
    print("learner exiting", flush=True)
    stop.set()
    print("ONSET", flush=True)
    for p in actors:
        p.join()
    return steps, loss.item()


def main():
    signal.alarm(300)
    torch.set_num_threads(1)
    db = sqlite3.connect(":memory:")
    db.execute("create table sweep (lr real, steps integer, loss real)")
    for setting in (Setting(0.05, 20), Setting(0.01, 20), Setting(0.002, 20)):
        steps, loss = learner(setting)
        db.execute("insert into sweep values (?, ?, ?)", (setting.lr, steps, loss))
    print(db.execute("select * from sweep order by loss").fetchall())


if __name__ == "__main__":
    main()
