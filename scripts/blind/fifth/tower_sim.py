"""FIELD
source: own: the repaired form of open-jarvis/OpenJarvis#750 (a simulator child with JSON over pipes and a noisy stderr, with a thread that reads it)
mechanism: a simulator child answers JSON lines and prints solver warnings to stderr, which a thread of the trainer drains; the trainer waits shortly for each reply and spends most of its time in the update; nothing is wrong
needs: none
ranks: 1
onset: printed
state: healthy
cause: cpu_training, balanced
blame: none
twin: none
"""
import collections
import json
import random
import signal
import subprocess
import sys
import threading
import time


def simulator():
    rng, heights = random.Random(8), [0.0] * 6
    for line in sys.stdin:
        request = json.loads(line)
        drop = request["column"]
        heights[drop] += rng.uniform(0.2, 0.6)
        tilt = max(heights) - min(heights)
        if tilt > 1.0:
            print(f"[solver] tower tilts by {tilt:.3f}: 60 more contact iterations, residual {rng.random() * 1e-4:.2e}", file=sys.stderr, flush=True)
        fell = tilt > 2.0
        print(json.dumps({"obs": heights, "reward": -1.0 if fell else 0.1 - 0.05 * tilt, "done": fell}), flush=True)
        if fell:
            heights = [0.0] * 6


class ChildEnv:
    def __init__(self):
        self.process = subprocess.Popen([sys.executable, __file__, "sim"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.recent = collections.deque(maxlen=50)
        threading.Thread(target=self.drain, name="stderr", daemon=True).start()

    def drain(self):
        for line in self.process.stderr:
            self.recent.append(line)

    def step(self, column):
        self.process.stdin.write(json.dumps({"column": column}) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def learn():
    import torch
    from torch import nn

    torch.set_num_threads(1)
    env, memory = ChildEnv(), collections.deque(maxlen=20_000)
    critic, target = (nn.Sequential(nn.Linear(6, 384), nn.ReLU(), nn.Linear(384, 384), nn.ReLU(), nn.Linear(384, 6)) for _ in range(2))
    target.load_state_dict(critic.state_dict())
    optimizer = torch.optim.Adam(critic.parameters(), lr=5e-4)
    obs, begun, told, rolling = [0.0] * 6, time.monotonic(), False, collections.deque(maxlen=500)
    for step in range(1, 100_000_000):
        explore = random.random() < max(0.05, 1 - step / 2000)
        with torch.no_grad():
            column = random.randrange(6) if explore else int(critic(torch.tensor(obs)).argmax())
        reply = env.step(column)
        memory.append((obs, column, reply["reward"], reply["obs"], reply["done"]))
        rolling.append(reply["reward"])
        obs = [0.0] * 6 if reply["done"] else reply["obs"]
        if len(memory) < 200:
            continue
        before, actions, rewards, after, done = zip(*random.sample(memory, 192))
        rewards, done = torch.tensor(rewards), torch.tensor(done, dtype=torch.float32)
        with torch.no_grad():
            best = critic(torch.tensor(after)).argmax(1, keepdim=True)
            wanted = rewards + 0.95 * (1 - done) * target(torch.tensor(after)).gather(1, best).squeeze(1)
        chosen = critic(torch.tensor(before)).gather(1, torch.tensor(actions)[:, None]).squeeze(1)
        loss = nn.functional.smooth_l1_loss(chosen, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 250 == 0:
            target.load_state_dict(critic.state_dict())
            print(f"step {step} loss {loss.item():.4f} reward {sum(rolling) / len(rolling):+.3f}; last warning: {env.recent[-1].strip() if env.recent else '-'}", flush=True)
        if not told and time.monotonic() - begun > 10:
            told = True
            print("ONSET", flush=True)


if __name__ == "__main__":
    signal.alarm(300)
    simulator() if sys.argv[1:] == ["sim"] else learn()
