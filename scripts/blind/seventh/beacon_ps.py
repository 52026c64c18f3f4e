"""FIELD
source: flwrlabs/flower#4147 ("stuck at the 'Sent reply' stage": the server waits for a second client that is not there)
mechanism: a synchronous parameter server in a child averages the pushes of two trainers at a threading.Barrier; the second
    trainer runs out of samples and leaves without a word, so the handler of the first waits at the barrier and the first
    trainer waits in recv for weights that never come
needs: none
ranks: 1
onset: printed
state: hung
cause: blocked_network, blocked_child, dead_worker, deadlocked_locks
blame: none
twin: none
"""
import ctypes
import multiprocessing as mp
import os
import pickle
import signal
import socket
import struct
import sys
import threading
import time

import torch
import torch.nn.functional as F
from torch import nn


def die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    signal.alarm(300)


def send(sock, thing):
    body = pickle.dumps(thing, protocol=5)
    sock.sendall(struct.pack("<Q", len(body)) + body)


def recv(sock):
    def exactly(count):
        parts = bytearray()
        while len(parts) < count:
            piece = sock.recv(min(1 << 16, count - len(parts)))
            if not piece:
                raise EOFError
            parts += piece
        return bytes(parts)

    (size,) = struct.unpack("<Q", exactly(8))
    return pickle.loads(exactly(size))


class Server:
    def __init__(self, trainers, weights, lr):
        self.weights, self.lr, self.trainers = weights, lr, trainers
        self.pushed = [None] * trainers
        self.everyone = threading.Barrier(trainers, action=self.apply)

    def apply(self):
        mean = sum(self.pushed) / self.trainers
        self.weights = self.weights - self.lr * mean

    def serve(self, conn, slot):
        try:
            while True:
                kind, body = recv(conn)
                if kind == "push":
                    self.pushed[slot] = body
                    self.everyone.wait()
                send(conn, self.weights)
        except EOFError:
            conn.close()


def server_process(listener, start):
    die_with_parent()
    ps = Server(2, start, 0.05)
    handlers = []
    for slot in range(2):
        conn, _ = listener.accept()
        handlers.append(threading.Thread(target=ps.serve, args=(conn, slot)))
        handlers[-1].start()
    for handler in handlers:
        handler.join()


def signals(generator, size=24):
    """Bluetooth beacons: strengths at eight antennas, and the room."""
    rooms = torch.randint(0, 12, (size,), generator=generator)
    base = torch.sin(rooms[:, None] * torch.arange(1, 9) * 0.7)
    return base[:, :, None] + 0.3 * torch.randn(size, 8, 64, generator=generator), rooms


def build():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv1d(8, 48, 5, padding=2), nn.ReLU(), nn.Conv1d(48, 48, 5, padding=2), nn.ReLU(), nn.Flatten(), nn.Linear(48 * 64, 12)
    )


def trainer(address, seed, quota):
    torch.set_num_threads(1)
    model, generator = build(), torch.Generator().manual_seed(seed)
    sock = socket.create_connection(address)
    send(sock, ("pull", None))
    born, step = time.monotonic(), 0
    while time.monotonic() - born < quota:
        nn.utils.vector_to_parameters(recv(sock), model.parameters())
        x, y = signals(generator)
        loss = F.cross_entropy(model(x), y)
        model.zero_grad()
        loss.backward()
        send(sock, ("push", torch.cat([p.grad.flatten() for p in model.parameters()])))
        step += 1
        if seed == 0 and step % 100 == 0:
            print(f"trainer 0: push {step}, loss {loss.item():.3f}", flush=True)
    recv(sock)
    print(f"trainer {seed} is through its samples after {step} pushes", flush=True)


def second_trainer(address):
    die_with_parent()
    os.nice(1)
    trainer(address, 1, quota=20.0)
    print("ONSET", flush=True)
    sys.exit(0)


if __name__ == "__main__":
    signal.alarm(300)
    listener = socket.create_server(("127.0.0.1", 0))
    start = nn.utils.parameters_to_vector(build().parameters()).detach()
    fork = mp.get_context("fork")
    fork.Process(target=server_process, args=(listener, start), name="ps", daemon=True).start()
    fork.Process(target=second_trainer, args=(listener.getsockname(),), name="trainer-1", daemon=True).start()
    trainer(listener.getsockname(), 0, quota=10**6)
