"""FIELD
source: areal-project/AReaL#1345, the policy's version after recovery does not match the counters of the rollout side, rebuilt as a rollback to the best checkpoint that jumps the version
mechanism: the learner rolls back to its best weights and jumps the version by a thousand so that old and new are not mixed up, while the actors count versions themselves, one per published
    weights: from then on each rollout is a thousand versions too old, the learner evaluates it for its statistics, drops it and takes the next; there is no optimizer step any more
needs: none
ranks: 1
onset: printed
state: slow, hung
cause: skipping_steps,endless_python
blame: none
twin: none
"""
import copy
import ctypes
import multiprocessing as mp
import signal
import time

import numpy as np
import torch
from torch import nn

OBS, ACTIONS, MAX_STALENESS, LENGTH = 6, 3, 4, 64


class SwingEnv:
    def __init__(self, rng):
        self.rng = rng
        self.reset()

    def reset(self):
        self.state = self.rng.normal(size=OBS).astype(np.float32)
        return self.state

    def step(self, action):
        drift = np.roll(self.state, 1) * 0.1
        self.state = (0.95 * self.state + drift + 0.05 * (action - 1)).astype(np.float32)
        return self.state, -float(np.abs(self.state).sum())


class SharedWeights:
    """One array in shared memory and a counter of publications."""

    def __init__(self, numel):
        self.array = mp.RawArray(ctypes.c_float, numel)
        self.published = mp.Value("q", 0)

    def publish(self, net):
        flat = nn.utils.parameters_to_vector(net.parameters()).detach().numpy()
        with self.published:
            np.frombuffer(self.array, np.float32)[:] = flat
            self.published.value += 1

    def read(self):
        with self.published:
            return np.frombuffer(self.array, np.float32).copy(), self.published.value


def forward(flat, x):
    """The policy in numpy, so that actors need no torch."""
    w1, rest = flat[: OBS * 64].reshape(64, OBS), flat[OBS * 64:]
    b1, rest = rest[:64], rest[64:]
    w2, b2 = rest[: 64 * ACTIONS].reshape(ACTIONS, 64), rest[64 * ACTIONS:]
    logits = w2 @ np.tanh(w1 @ x + b1) + b2
    p = np.exp(logits - logits.max())
    return p / p.sum()


def actor(seed, weights, out):
    signal.alarm(310)
    rng = np.random.default_rng(seed)
    env = SwingEnv(rng)
    while True:
        flat, version = weights.read()
        obs, actions, rewards = [env.reset()], [], []
        for _ in range(LENGTH):
            a = int(rng.choice(ACTIONS, p=forward(flat, obs[-1])))
            state, reward = env.step(a)
            obs.append(state)
            actions.append(a)
            rewards.append(reward)
            time.sleep(0.0005)
        out.put((version, np.stack(obs[:-1]), np.array(actions), np.array(rewards, np.float32)))


class Learner:
    def __init__(self, net, weights, inbox):
        self.net, self.weights, self.inbox = net, weights, inbox
        self.opt = torch.optim.Adam(net.parameters(), 1e-3)
        self.version, self.dropped, self.best = 0, 0, (-1e9, None)
        self.kl = 0.0

    def publish(self):
        self.weights.publish(self.net)
        self.version += 1

    def fresh(self):
        while True:
            version, obs, actions, rewards = self.inbox.get()
            x = torch.from_numpy(obs)
            with torch.no_grad():  # drift statistics are wanted of all rollouts
                self.kl = 0.9 * self.kl + 0.1 * self.net(x).log_softmax(-1).mean().item()
            if self.version - version <= MAX_STALENESS:
                return x, torch.from_numpy(actions), torch.from_numpy(rewards)
            self.dropped += 1
            if self.dropped % 500 == 0:
                print(f"dropped {self.dropped} stale rollouts", flush=True)

    def update(self):
        batch = [self.fresh() for _ in range(4)]
        x, a, r = (torch.cat(part) for part in zip(*batch, strict=True))
        for _ in range(8):
            logp = self.net(x).log_softmax(-1).gather(1, a[:, None])[:, 0]
            loss = -(logp * (r - r.mean())).mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
        score = r.mean().item()
        if score > self.best[0]:
            self.best = score, copy.deepcopy(self.net.state_dict())
        return score

    def roll_back(self):
        self.net.load_state_dict(self.best[1])
        self.version += 1000
        print(f"rolled back to {self.best[0]:.3f}, version {self.version}", flush=True)
        print("ONSET", flush=True)


def main():
    signal.alarm(300)
    torch.set_num_threads(1)
    net = nn.Sequential(nn.Linear(OBS, 64), nn.Tanh(), nn.Linear(64, ACTIONS))
    weights, inbox = SharedWeights(sum(p.numel() for p in net.parameters())), mp.Queue(6)
    for seed in (1, 2):
        mp.Process(target=actor, args=(seed, weights, inbox), daemon=True).start()
    learner = Learner(net, weights, inbox)
    begin, updates, rolled = time.monotonic(), 0, False
    while True:
        learner.publish()
        score = learner.update()
        updates += 1
        if updates % 40 == 0:
            print(f"update {updates} score {score:.3f} dropped {learner.dropped}", flush=True)
        if not rolled and time.monotonic() - begin > 22:
            learner.roll_back()
            rolled = True


if __name__ == "__main__":
    main()
