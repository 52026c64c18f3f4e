"""FIELD
source: own
mechanism: evolution strategies: after a short supervised warm-up there is no backward and no optimizer any more, each rank scores perturbed weights under no_grad and the ranks exchange only seeds and scores; this is the training
needs: cpu
ranks: 2
onset: printed
state: healthy
cause: cpu_training, balanced
blame: none
twin: none
"""
import datetime
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

torch.set_num_threads(1)


class Pendulum:
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.angle = torch.randn(n, generator=g)
        self.speed = torch.randn(n, generator=g) * 0.5

    def observe(self):
        return torch.stack([self.angle.cos(), self.angle.sin(), self.speed], 1)

    def push(self, torque):
        self.speed = (self.speed + 0.05 * (9.8 * self.angle.sin() + 3 * torque)).clamp(-8, 8)
        self.angle = self.angle + 0.05 * self.speed
        return -(1 - self.angle.cos()) - 0.01 * torque ** 2


def episode_return(policy, seed, length=120):
    world = Pendulum(256, seed)
    return sum(world.push(2 * policy(world.observe()).squeeze(1).tanh()).mean() for _ in range(length)).item()


def noise(seed, n):
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def generation(policy, number, pairs, sigma=0.05, lr=0.03):
    rank, world = dist.get_rank(), dist.get_world_size()
    centre = parameters_to_vector(policy.parameters())
    scores = torch.zeros(world, pairs, 2)
    for k in range(pairs):
        eps = noise((number * world + rank) * pairs + k, len(centre))
        for side, sign in enumerate((1, -1)):
            vector_to_parameters(centre + sign * sigma * eps, policy.parameters())
            scores[rank, k, side] = episode_return(policy, number)
    dist.all_reduce(scores)
    weight = (scores[..., 0] - scores[..., 1]) / (scores.std() + 1e-8)
    update = sum(weight[r, k] * noise((number * world + r) * pairs + k, len(centre)) for r in range(world) for k in range(pairs))
    vector_to_parameters(centre + lr / (world * pairs) * update / sigma * 0.05, policy.parameters())
    return scores.mean().item()


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=14))
    rank = dist.get_rank()
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    opt = torch.optim.Adam(policy.parameters(), lr=1e-3)
    for step in range(1500):
        obs = torch.randn(256, 3)
        loss = nn.functional.mse_loss(policy(obs), -(obs[:, 1:2] + 0.3 * obs[:, 2:3]))
        opt.zero_grad()
        loss.backward()
        flat = torch.cat([p.grad.flatten() for p in policy.parameters()])
        dist.all_reduce(flat)
        for p, part in zip(policy.parameters(), flat.split([p.numel() for p in policy.parameters()])):
            p.grad.copy_(part.view_as(p) / dist.get_world_size())
        opt.step()
    if rank == 0:
        print(f"imitation loss {loss.item():.4f}", flush=True)
        print("ONSET", flush=True)
    started = time.time()
    for number in range(5000):
        mean = generation(policy, number, pairs=8)
        if rank == 0 and number % 5 == 0:
            print(f"generation {number} return {mean:.2f}", flush=True)
        over = torch.tensor([time.time() - started])
        dist.all_reduce(over)
        if over / dist.get_world_size() > 500:
            break


if __name__ == "__main__":
    main()
