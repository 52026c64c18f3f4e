"""FIELD
source: own (PPO with subprocess environments, a long horizon in the second phase)
mechanism: a rollout of many environment steps runs in two environment processes; the learner waits in recv() for them and only runs the policy
needs: cpu
ranks: 1
onset: printed
state: busy
cause: evaluating, waiting_on_work
blame: none
twin: none
"""
import multiprocessing as mp
import time

import numpy as np
import torch
import torch.nn as nn

torch.set_num_threads(1)


class Cloth:
    """A sheet of springs, integrated explicitly."""

    def __init__(self, seed, substeps):
        self.rng, self.substeps = np.random.default_rng(seed), substeps
        self.reset()

    def reset(self):
        y, x = np.mgrid[0:48, 0:48]
        self.pos = np.stack([x, y, np.zeros_like(x)], -1).astype(float) + 0.01 * self.rng.standard_normal((48, 48, 3))
        self.vel = np.zeros_like(self.pos)
        return self.observe()

    def observe(self):
        return np.concatenate([self.pos[::16, ::16].ravel(), self.vel[::16, ::16].ravel()]).astype(np.float32)

    def step(self, action):
        for _ in range(self.substeps):
            force = np.zeros_like(self.pos)
            for axis in (0, 1):
                d = np.diff(self.pos, axis=axis)
                length = np.linalg.norm(d, axis=-1, keepdims=True)
                f = 40 * (length - 1) * d / (length + 1e-9)
                lo = [slice(None)] * 3
                hi = [slice(None)] * 3
                lo[axis], hi[axis] = slice(None, -1), slice(1, None)
                force[tuple(lo)] += f
                force[tuple(hi)] -= f
            force[0, :, 2] += action[0]
            force[:, 0, 2] += action[1]
            self.vel = 0.995 * (self.vel + 0.002 * force)
            self.pos = self.pos + 0.002 * self.vel
        return self.observe(), -float(np.abs(self.pos[..., 2]).mean())


def environment(conn, seed):
    env = Cloth(seed, 20)
    while True:
        if not conn.poll(600):
            return
        kind, value = conn.recv()
        if kind == "reset":
            env.substeps = value
            conn.send(env.reset())
        elif kind == "step":
            conn.send(env.step(value))
        else:
            return


def rollout(policy, conns, seconds, substeps):
    for c in conns:
        c.send(("reset", substeps))
    obs = torch.from_numpy(np.stack([c.recv() for c in conns]))
    memory, began = [], time.time()
    while time.time() - began < seconds:
        with torch.no_grad():
            mean = policy(obs)[:, :2]
            action = mean + 0.3 * torch.randn_like(mean)
        for c, a in zip(conns, action.numpy()):
            c.send(("step", a))
        replies = [c.recv() for c in conns]
        memory.append((obs, action, torch.tensor([r for _, r in replies])))
        obs = torch.from_numpy(np.stack([o for o, _ in replies]))
    return memory


def main():
    pairs = [mp.Pipe() for _ in range(2)]
    workers = [mp.Process(target=environment, args=(child, i), daemon=True) for i, (_, child) in enumerate(pairs)]
    for w in workers:
        w.start()
    conns = [parent for parent, _ in pairs]
    policy = nn.Sequential(nn.Linear(54, 128), nn.Tanh(), nn.Linear(128, 3))
    opt = torch.optim.Adam(policy.parameters(), lr=3e-4)
    for update, (seconds, substeps) in enumerate([(1, 20)] * 6 + [(400, 900)]):
        if seconds > 100:
            print("ONSET", flush=True)
        memory = rollout(policy, conns, seconds, substeps)
        obs, act = torch.cat([m[0] for m in memory]), torch.cat([m[1] for m in memory])
        ret = torch.cat([m[2] for m in memory])
        for _ in range(100):
            out = policy(obs)
            advantage = ret - out[:, 2]
            loss = ((out[:, :2] - act).pow(2).sum(1) * advantage.detach()).mean() + advantage.pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(f"update {update} return {ret.mean().item():.4f} loss {loss.item():.4f}", flush=True)
    for c in conns:
        c.send(("close", None))
    for w in workers:
        w.join()


if __name__ == "__main__":
    main()
