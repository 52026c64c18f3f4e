"""FIELD
source: open-jarvis/OpenJarvis#750 and HKUDS/OpenHarness#204 (stderr=PIPE that nobody reads deadlocks the child and then the caller)
mechanism: the simulator runs as a child with JSON over stdin and stdout and stderr=PIPE; with the heavy loads of the second level its solver prints warnings, the pipe fills, the child blocks in write and the trainer waits for its reply
needs: none
ranks: 1
onset: printed
state: hung
cause: blocked_pipe, blocked_child
blame: warn ()
twin: none
"""
import json
import random
import signal
import subprocess
import sys
import threading
import time


class Simulator:
    """A crane with a swinging load; the child's side of the protocol."""

    def __init__(self):
        self.rng, self.cart, self.swing = random.Random(2), [0.0, 0.0], [0.1, 0.0]

    def warn(self, residual, iterations):
        table = "\n".join(f"    contact {i:3d}: lambda={self.rng.random():.6f} gap={self.rng.random() * 1e-5:.3e}" for i in range(24))
        sys.stderr.write(f"[solver] no convergence after {iterations} iterations, residual {residual:.3e}\n{table}\n")
        sys.stderr.flush()

    def step(self, force, load):
        for _ in range(4):
            pull = -9.8 * self.swing[0] - 0.3 * self.swing[1] - force / (1 + load)
            self.swing[1] += 0.01 * pull
            self.swing[0] += 0.01 * self.swing[1]
            self.cart[1] += 0.01 * (force - 0.2 * self.cart[1])
            self.cart[0] += 0.01 * self.cart[1]
        if load > 2.5:
            self.warn(abs(self.swing[0]) * 1e-3, 200)
        return [*self.cart, *self.swing], -abs(self.swing[0]) - 0.1 * abs(self.cart[0] - 1)

    def serve(self):
        for line in sys.stdin:
            message = json.loads(line)
            if message["op"] == "reset":
                self.__init__()
                answer = {"obs": [0.0, 0.0, 0.1, 0.0], "reward": 0.0}
            else:
                obs, reward = self.step(message["force"], message["load"])
                answer = {"obs": obs, "reward": reward}
            print(json.dumps(answer), flush=True)


class Remote:
    def __init__(self):
        command = [sys.executable, __file__, "--simulator"]
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def call(self, **message):
        self.child.stdin.write(json.dumps(message) + "\n")
        self.child.stdin.flush()
        reply = json.loads(self.child.stdout.readline())
        return reply["obs"], reply["reward"]


def train():
    import torch
    from torch import nn

    torch.set_num_threads(1)
    env, begun, level = Remote(), time.monotonic(), 1
    policy = nn.Sequential(nn.Linear(4, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 1))
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4)
    progress = {"episode": 0}

    def beat():
        while True:
            time.sleep(5)
            print(f"[{time.monotonic() - begun:5.0f} s] episodes so far: {progress['episode']}", flush=True)

    threading.Thread(target=beat, daemon=True).start()
    for episode in range(1_000_000):
        progress["episode"] = episode
        if level == 1 and time.monotonic() - begun > 9:
            level = 2
            print("level 2: loads up to 4 t", flush=True)
            print("ONSET", flush=True)
        obs, _ = env.call(op="reset")
        log_probs, rewards = [], []
        for _ in range(50):
            choice = torch.distributions.Normal(policy(torch.tensor(obs)), 0.4)
            force = choice.sample()
            load = random.uniform(0.5, 2.0) if level == 1 else random.uniform(2.0, 4.0)
            obs, reward = env.call(op="step", force=force.item(), load=load)
            log_probs.append(choice.log_prob(force))
            rewards.append(reward)
        returns = torch.tensor(rewards).flip(0).cumsum(0).flip(0)
        returns = (returns - returns.mean()) / (returns.std() + 1e-5)
        loss = -(torch.cat(log_probs) * returns).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if episode % 20 == 0:
            print(f"episode {episode} return {sum(rewards):.2f} loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    signal.alarm(300)
    Simulator().serve() if "--simulator" in sys.argv else train()
