"""FIELD
source: reiniscimurs/DRL-robot-navigation#110 (a step of the real robot takes TIME_DELTA; no computer makes that faster)
mechanism: an arm is driven at 10 Hz by a person's recorded demonstration; each tick of the event loop reads the joints, makes one
    gradient step on the imitation loss and sleeps until the next tick; every deadline is met, as it should be
needs: none
ranks: 1
onset: printed
state: healthy
cause: any
blame: none
twin: none
"""
import asyncio
import collections
import signal

import torch
from torch import nn

HERTZ, JOINTS = 10, 6


class Arm:
    """Joints that follow their targets with inertia; the demonstrator draws eights."""

    def __init__(self):
        self.angle, self.speed, self.phase = torch.zeros(JOINTS), torch.zeros(JOINTS), 0.0

    def demonstration(self):
        self.phase += 2 * torch.pi * 0.2 / HERTZ
        return torch.sin(self.phase * torch.arange(1, JOINTS + 1) / 2 + torch.arange(JOINTS))

    def move(self, target):
        self.speed = 0.7 * self.speed + 0.3 * (target - self.angle)
        self.angle = self.angle + self.speed
        return torch.cat([self.angle, self.speed])


class Imitator:
    def __init__(self):
        layers = [nn.Linear(2 * JOINTS * 4, 512), nn.LayerNorm(512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, JOINTS)]
        self.policy = nn.Sequential(*layers)
        self.optimizer = torch.optim.Adam(self.policy.parameters(), 3e-4)
        self.pairs = collections.deque(maxlen=4000)
        self.recent = collections.deque([torch.zeros(2 * JOINTS)] * 4, maxlen=4)

    def see(self, joints, target):
        self.recent.append(joints)
        self.pairs.append((torch.cat(list(self.recent)), target))

    def improve(self):
        rows = torch.randint(0, len(self.pairs), (64,)).tolist()
        seen, wanted = (torch.stack(part) for part in zip(*(self.pairs[i] for i in rows), strict=True))
        loss = nn.functional.l1_loss(self.policy(seen), wanted)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


class Session:
    def __init__(self, loop):
        self.loop, self.arm, self.student = loop, Arm(), Imitator()
        self.start, self.count, self.late = loop.time(), 0, 0
        self.over = loop.create_future()

    def tick(self):
        try:
            target = self.arm.demonstration()
            self.student.see(self.arm.move(target), target)
            loss = self.student.improve()
        except Exception as error:
            self.over.set_exception(error)
            return
        self.count += 1
        if self.count == 15 * HERTZ:
            print("ONSET", flush=True)
        if self.count % (5 * HERTZ) == 0:
            print(f"tick {self.count}, {self.late} late, loss {loss:.4f}", flush=True)
        due = self.start + self.count / HERTZ
        self.late += due < self.loop.time()
        self.loop.call_at(due, self.tick)


async def main():
    session = Session(asyncio.get_running_loop())
    session.loop.call_soon(session.tick)
    await session.over


if __name__ == "__main__":
    signal.alarm(300)
    torch.set_num_threads(1)
    asyncio.run(main())
