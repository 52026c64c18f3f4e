"""FIELD
source: own: a control problem learnt by backpropagation through a whole simulated episode; few optimizer steps
mechanism: episodes of the curriculum grow from 60 to 2,000 simulator steps and six are accumulated, so that one optimizer step
    takes half a minute and more, forward and backward all the time, and a line is printed only after it
needs: none
ranks: 1
onset: printed
state: healthy
cause: any
blame: none
twin: none
"""
import signal
import time
from typing import NamedTuple

import torch
from torch import Tensor, nn


class State(NamedTuple):
    angle: Tensor
    speed: Tensor
    position: Tensor
    velocity: Tensor


def physics(s: State, force: Tensor, dt: float = 0.02) -> State:
    """A cart with a damped pole, integrated by semi-implicit Euler."""
    sine, cosine = torch.sin(s.angle), torch.cos(s.angle)
    push = (force + 0.05 * s.speed * s.speed * sine) / 1.1
    bend = (9.8 * sine - cosine * push) / (0.5 * (4 / 3 - 0.1 * cosine * cosine / 1.1))
    speed = (s.speed + dt * bend).clamp(-8, 8) * 0.999
    velocity = (s.velocity + dt * (push - 0.05 * bend * cosine / 1.1)) * 0.995
    return State(s.angle + dt * speed, speed, s.position + dt * velocity, velocity)


class Controller(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.force = nn.GRUCell(5, 24), nn.Linear(24, 1)

    def forward(self, s: State, memory: Tensor) -> tuple[Tensor, Tensor]:
        seen = torch.stack([s.angle.sin(), s.angle.cos(), s.speed / 4, s.position / 3, s.velocity / 3], -1)
        memory = self.cell(seen, memory)
        return 6 * torch.tanh(self.force(memory)).squeeze(-1), memory


def episode(controller: Controller, length: int, batch: int = 12) -> Tensor:
    state = State(*(0.1 * torch.randn(4, batch)).unbind())
    memory, cost = torch.zeros(batch, 24), torch.zeros(())
    for _ in range(length):
        force, memory = controller(state, memory)
        state = physics(state, force)
        cost = cost + (1 - state.angle.cos() + 0.01 * state.position**2 + 0.001 * force**2).mean()
    return cost / length


def lengths(warm_up: float):
    began = time.monotonic()
    while time.monotonic() - began < warm_up:
        yield 60
    print("ONSET", flush=True)
    while True:
        yield 2000


if __name__ == "__main__":
    signal.alarm(300)
    torch.set_num_threads(1)
    torch.manual_seed(1)
    pilot = Controller()
    optimizer = torch.optim.Adam(pilot.parameters(), 1e-3)
    for number, length in enumerate(lengths(warm_up=16)):
        begin = time.monotonic()
        optimizer.zero_grad()
        for _ in range(6 if length > 1000 else 1):
            loss = episode(pilot, length)
            loss.backward()
        nn.utils.clip_grad_norm_(pilot.parameters(), 0.5)
        optimizer.step()
        if length > 1000 or number % 20 == 0:
            print(f"episode {number} of {length} cost {loss.item():.4f} {time.monotonic() - begin:.2f} s", flush=True)
