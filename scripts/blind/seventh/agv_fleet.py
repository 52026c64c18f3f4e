"""FIELD
source: pytorch/torchtitan#3642 (a producer task that crashes is never awaited, and the loop hangs on instead of raising)
mechanism: four simulated vehicles are asyncio tasks that fill a queue in real time; a firmware change renames a field, each
    of the tasks dies of a KeyError that nobody retrieves, and the learner awaits the queue for ever; only a ticker still runs
needs: none
ranks: 1
onset: printed
state: hung
cause: unknown, endless_python
blame: none
twin: none
"""
import asyncio
import math
import random
import signal
import time
from collections import deque

import torch
from torch import nn

TICK = 0.04
FIRMWARE_CHANGE = 18.0  # seconds into the shift


class Vehicle:
    """A vehicle that follows a painted line; steering is -1..1."""

    def __init__(self, name, rng):
        self.name, self.rng = name, rng
        self.offset, self.heading = rng.uniform(-0.5, 0.5), 0.0

    def telemetry(self, age):
        reading = {"offset": self.offset, "heading": self.heading}
        if age > FIRMWARE_CHANGE:
            reading["lateral"] = reading.pop("offset")  # what the new firmware calls it
        return reading

    def drive(self, steering):
        self.heading += 0.3 * steering * TICK + self.rng.gauss(0, 0.01)
        self.offset += math.sin(self.heading) * TICK * 3
        if abs(self.offset) > 2:
            self.offset, self.heading = self.rng.uniform(-0.5, 0.5), 0.0
        return -abs(self.offset)


class Shift:
    def __init__(self):
        self.born = time.monotonic()
        self.actor = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 1), nn.Tanh())
        self.critic = nn.Sequential(nn.Linear(3, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
        self.opt = torch.optim.AdamW(self.critic.parameters(), 1e-3)
        self.actor_opt = torch.optim.AdamW(self.actor.parameters(), 1e-4)
        self.queue = asyncio.Queue(maxsize=2000)
        self.memory = deque(maxlen=20_000)
        self.updates, self.told = 0, False

    @property
    def age(self):
        return time.monotonic() - self.born

    async def patrol(self, vehicle):
        while True:
            seen = vehicle.telemetry(self.age)
            if "lateral" in seen and not self.told:
                self.told = True
                print("ONSET", flush=True)
            state = (seen["offset"], seen["heading"])
            with torch.no_grad():
                steering = self.actor(torch.tensor(state)).item() + vehicle.rng.gauss(0, 0.2)
            reward = vehicle.drive(max(-1.0, min(1.0, steering)))
            await self.queue.put((*state, steering, reward))
            await asyncio.sleep(TICK)

    async def learn(self):
        while True:
            self.memory.append(await self.queue.get())
            if len(self.memory) < 256:
                continue
            rows = torch.tensor(random.sample(self.memory, 256))
            loss = nn.functional.mse_loss(self.critic(rows[:, :3]).squeeze(1), rows[:, 3])
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            gain = self.critic(torch.cat([rows[:, :2], self.actor(rows[:, :2])], 1)).mean()
            self.actor_opt.zero_grad()
            (-gain).backward()
            self.actor_opt.step()
            self.updates += 1

    async def ticker(self):
        while True:
            await asyncio.sleep(4)
            print(f"{self.age:6.1f} s  {self.updates} updates, {len(self.memory)} in memory", flush=True)


async def main():
    shift = Shift()
    fleet = {asyncio.create_task(shift.patrol(Vehicle(f"agv-{n}", random.Random(n)))) for n in range(4)}
    fleet.add(asyncio.create_task(shift.ticker()))
    await shift.learn()


if __name__ == "__main__":
    signal.alarm(300)
    torch.set_num_threads(1)
    asyncio.run(main())
