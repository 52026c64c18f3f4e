"""FIELD
source: own: a publisher thread serialises the weights for rollout clients under the lock that guards the optimizer step
mechanism: at first the clients ask once in four seconds; then more clients come, and the publisher pickles,
    compresses and hashes the state nearly all the time, each time under the lock that the training thread needs for
    its step
needs: none
ranks: 1
onset: printed
state: slow
cause: contended_lock
blame: none
twin: none
"""
import hashlib
import io
import signal
import socket
import socketserver
import threading
import time
import zlib

import torch
from torch import nn
from torch.distributions import Categorical


class Policy(nn.Module):
    def __init__(self, observations=24, actions=5, width=320):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(observations, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.actor, self.critic = nn.Linear(width, actions), nn.Linear(width, 1)

    def forward(self, x):
        h = self.trunk(x)
        return Categorical(logits=self.actor(h)), self.critic(h).squeeze(-1)


class Shared:
    def __init__(self):
        self.policy, self.lock, self.version = Policy(), threading.Lock(), 0

    def snapshot(self):
        with self.lock:
            buffer = io.BytesIO()
            torch.save(self.policy.state_dict(), buffer)
            packed = zlib.compress(buffer.getbuffer(), 9)
            for _ in range(12):  # signature of every layer group, with the same key
                hashlib.pbkdf2_hmac("sha256", packed[:64], self.version.to_bytes(8, "big"), 8000)
            return self.version, packed


SHARED = Shared()


class Publisher(socketserver.StreamRequestHandler):
    def handle(self):
        while self.rfile.readline():
            version, packed = SHARED.snapshot()
            self.wfile.write(b"%d %d\n" % (version, len(packed)) + packed)


def client(address, pause):
    with socket.create_connection(address) as s:
        stream = s.makefile("rwb")
        while True:
            stream.write(b"weights\n")
            stream.flush()
            _, size = stream.readline().split()
            stream.read(int(size))
            time.sleep(pause())


def rollouts(count=64, generator=torch.Generator().manual_seed(2)):
    while True:
        x = torch.randn(count, 24, generator=generator)
        yield x, x[:, :5].argmax(-1)


def main():
    signal.alarm(300)
    torch.set_num_threads(1)
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Publisher)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    busy = threading.Event()

    def pause():
        return 0.01 if busy.is_set() else 4.0

    def start():
        threading.Thread(target=client, args=(server.server_address, pause), daemon=True).start()

    start()
    optimizer = torch.optim.Adam(SHARED.policy.parameters(), 3e-4)
    began, mark = time.monotonic(), (0, time.monotonic())
    for x, good in rollouts():
        dist, value = SHARED.policy(x)
        action = dist.sample()
        reward = (action == good).float()
        advantage = reward - value
        gain = (dist.log_prob(action) * advantage.detach()).mean() + 0.01 * dist.entropy().mean()
        loss = advantage.pow(2).mean() - gain
        optimizer.zero_grad()
        loss.backward()
        with SHARED.lock:
            optimizer.step()
            SHARED.version += 1
        time.sleep(0.005)
        now = time.monotonic()
        if not busy.is_set() and now - began > 18:
            busy.set()
            for _ in range(3):
                start()
            print("ONSET", flush=True)
        if now - mark[1] > 5:
            rate = (SHARED.version - mark[0]) / (now - mark[1])
            print(f"update {SHARED.version} reward {reward.mean():.3f} {rate:.1f} updates/s", flush=True)
            mark = (SHARED.version, now)


if __name__ == "__main__":
    main()
