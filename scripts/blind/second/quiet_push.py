"""FIELD
source: own
mechanism: a daemon thread that pushes metrics waits for ever for the answer of a collector that never answers, and its queue is full; the training drops metrics and goes on at full speed
needs: cpu
ranks: 1
onset: printed
state: healthy
cause: cpu_training, balanced
blame: none
twin: none
"""
import json
import queue
import socket
import threading
import time

import torch
import torch.nn as nn

torch.set_num_threads(1)


class Push(threading.Thread):
    def __init__(self, address):
        super().__init__(name="metrics-push", daemon=True)
        self.pending = queue.Queue(maxsize=16)
        self.link = socket.create_connection(address)
        self.dropped = 0

    def add(self, **values):
        try:
            self.pending.put_nowait(values)
        except queue.Full:
            self.dropped += 1

    def run(self):
        while True:
            record = self.pending.get()
            self.link.sendall((json.dumps(record) + "\n").encode())
            if not self.link.recv(3):
                break


def accept_some(listener, answers):
    link, _ = listener.accept()
    lines = link.makefile("rb")
    for _ in range(answers):
        lines.readline()
        link.sendall(b"ok\n")
    print("ONSET", flush=True)
    link.settimeout(None)
    threading.Event().wait()


class Mixer(nn.Module):
    def __init__(self, tokens=32, dim=64):
        super().__init__()
        self.across = nn.Sequential(nn.Linear(tokens, 64), nn.GELU(), nn.Linear(64, tokens))
        self.within = nn.Sequential(nn.Linear(dim, 128), nn.GELU(), nn.Linear(128, dim))

    def forward(self, x):
        x = x + self.across(x.transpose(1, 2)).transpose(1, 2)
        return x + self.within(x)


def main():
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=accept_some, args=(listener, 12), daemon=True).start()
    push = Push(listener.getsockname())
    push.start()
    model = nn.Sequential(Mixer(), Mixer(), nn.Flatten(), nn.Linear(2048, 10))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    protos = torch.randn(10, 32, 64)
    started, step, last = time.time(), 0, 0.0
    while time.time() - started < 600:
        y = torch.randint(0, 10, (96,))
        loss = nn.functional.cross_entropy(model(protos[y] + 16 * torch.randn(96, 32, 64)), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if time.time() - last > 0.8:
            last = time.time()
            push.add(step=step, loss=loss.item())
            print(f"step {step} loss {loss.item():.3f} dropped {push.dropped}", flush=True)


if __name__ == "__main__":
    main()
