"""FIELD
source: pytorch/pytorch#48666 (hang on Python exit: the main process joins the thread that puts into a queue nobody reads)
mechanism: the recorder process has returned after its budget, while the trainer kept putting transitions into the queue; training ends, and the exit of Python waits for the queue's feeder thread, which is blocked on a full pipe
needs: none
ranks: 1
onset: printed
state: hung
cause: hung_at_exit, blocked_pipe
blame: none
twin: none
"""

import collections
import random
import signal
import time

import torch
import torch.multiprocessing as mp
from torch import nn

Transition = collections.namedtuple("Transition", "state action reward following")


class Pendulum:
    def __init__(self):
        self.angle, self.speed = 1.0, 0.0

    def observe(self):
        return torch.tensor([self.angle, self.speed])

    def act(self, torque):
        self.speed += 0.05 * (torque - 9.8 * self.angle / 10)
        self.angle += 0.05 * self.speed
        if abs(self.angle) > 3:
            self.angle, self.speed = random.uniform(-1, 1), 0.0
        return -abs(self.angle)


def recorder(inbox, budget, done):
    """Keeps the best episodes for a video; it has enough after some of them."""
    signal.alarm(300)
    best = []
    for _ in range(budget):
        reward, trace = inbox.get()
        best = sorted([*best, (reward, len(trace))], reverse=True)[:5]
    done.value = best[0][0]


class DQN:
    def __init__(self):
        self.net = nn.Sequential(nn.Linear(2, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 3))
        self.opt = torch.optim.Adam(self.net.parameters(), 1e-3)
        self.memory = collections.deque(maxlen=5000)

    def choose(self, state, epsilon):
        if random.random() < epsilon:
            return random.randrange(3)
        with torch.no_grad():
            return int(self.net(state).argmax())

    def update(self):
        batch = Transition(*zip(*random.sample(self.memory, 64)))
        state, following = torch.stack(batch.state), torch.stack(batch.following)
        action, reward = torch.tensor(batch.action), torch.tensor(batch.reward)
        with torch.no_grad():
            target = reward + 0.97 * self.net(following).amax(1)
        loss = nn.functional.smooth_l1_loss(self.net(state).gather(1, action[:, None]).squeeze(1), target)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()


def main():
    signal.alarm(300)
    torch.set_num_threads(1)
    context = mp.get_context("fork")
    inbox, best = context.Queue(), context.Value("d", 0.0)
    context.Process(target=recorder, args=(inbox, 10, best), daemon=True).start()
    agent, env = DQN(), Pendulum()
    end, episode = time.monotonic() + 10, 0
    while time.monotonic() < end:
        trace, total, loss = [], 0.0, 0.0
        for _ in range(60):
            state = env.observe()
            action = agent.choose(state, max(0.05, 0.9 - episode / 50))
            reward = env.act(action - 1.0)
            agent.memory.append(Transition(state, action, reward, env.observe()))
            trace.append([float(v) for v in state] + [action, reward])
            total += reward
            if len(agent.memory) > 200:
                loss = agent.update()
        inbox.put((total, trace))
        if episode % 5 == 0:
            print(f"episode {episode} return {total:.1f} loss {loss:.4f}", flush=True)
        episode += 1
    for number in range(400):  # the last frames, for the video of the report
        inbox.put((0.0, [[env.angle, env.speed, number, 0.0]] * 60))
    print(f"done after {episode} episodes, best recorded {best.value:.1f}")
    print("ONSET", flush=True)


if __name__ == "__main__":
    main()
