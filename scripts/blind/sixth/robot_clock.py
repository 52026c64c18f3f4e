"""FIELD
source: own: policy of a real robot arm, driven at 20 Hz by an asyncio loop, with a control page that may ask for its state
mechanism: an episode lasts 45 s of wall time whatever the machine: the policy runs for a millisecond in each tick and the loop sleeps until the next; after two episodes it trains for some seconds
needs: none
ranks: 1
onset: printed
state: healthy, busy
cause: any
blame: none
twin: none
"""
import asyncio
import json
import math
import signal

import torch
from torch import nn

HERTZ, JOINTS = 20, 6


class Arm:
    """Stands for the driver: joints follow commands with a lag."""

    def __init__(self):
        self.position = torch.zeros(JOINTS)
        self.ticks = 0

    def command(self, target):
        self.position += 0.2 * (target - self.position) + 0.01 * torch.randn(JOINTS)
        self.ticks += 1
        return self.position.clone()

    def goal(self):
        return torch.tensor([math.sin(self.ticks / 40 + j) for j in range(JOINTS)])


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = nn.Sequential(nn.Linear(2 * JOINTS, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, JOINTS))
        self.log_std = nn.Parameter(torch.full((JOINTS,), -1.0))

    def forward(self, x):
        return torch.distributions.Normal(self.mean(x), self.log_std.exp())


class Session:
    def __init__(self):
        self.arm, self.actor = Arm(), Actor()
        self.opt = torch.optim.Adam(self.actor.parameters(), 3e-4)
        self.memory, self.phase = [], "idle"

    async def episode(self, seconds):
        loop = asyncio.get_running_loop()
        self.phase = "episode"
        tick = loop.time()
        for _ in range(int(seconds * HERTZ)):
            state = torch.cat([self.arm.position, self.arm.goal()])
            with torch.no_grad():
                action = self.actor(state).sample()
            reached = self.arm.command(action)
            self.memory.append((state, action, -(reached - self.arm.goal()).abs().mean()))
            tick += 1 / HERTZ
            await asyncio.sleep(max(0.0, tick - loop.time()))

    async def train(self, epochs):
        self.phase = "train"
        states, actions, rewards = (torch.stack(part) for part in zip(*self.memory, strict=True))
        advantage = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
        for _ in range(epochs):
            for pick in torch.randperm(len(states)).split(128):
                logp = self.actor(states[pick]).log_prob(actions[pick]).sum(1)
                loss = -(logp * advantage[pick]).mean()
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
            await asyncio.sleep(0)
        print(f"{self.arm.ticks} ticks, error {-rewards.mean():.3f}", flush=True)
        self.memory.clear()

    async def page(self, reader, writer):
        await reader.readline()
        writer.write(json.dumps({"phase": self.phase, "ticks": self.arm.ticks}).encode())
        await writer.drain()
        writer.close()


async def main():
    session = Session()
    await asyncio.start_server(session.page, "127.0.0.1", 0)
    for _ in range(10):  # short ones, to check the limits of the arm
        await session.episode(1)
        await session.train(150)
    print("limits fine, full episodes", flush=True)
    print("ONSET", flush=True)
    while True:
        for _ in range(2):
            await session.episode(45)
        await session.train(250)


if __name__ == "__main__":
    signal.alarm(300)
    torch.set_num_threads(1)
    asyncio.run(main())
