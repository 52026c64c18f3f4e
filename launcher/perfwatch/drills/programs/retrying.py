"""Every batch comes from a feature service that refuses most connections: connect, fail, wait longer, try again."""

import os
import socket
import time

import stage
import surroundings
import torch

REFUSALS = {"loud": 3, "quiet": 2, "masked": 1}
LOST = {"loud": 4, "quiet": 1, "masked": 0.45}  # the waits of one batch, in steps


def fetch(addresses, delay):
    for address in addresses:
        try:
            with socket.create_connection(address, timeout=5) as service:
                return service.recv(4096)
        except ConnectionRefusedError:
            time.sleep(delay)
            delay = min(2 * delay, 1.0)
    raise ConnectionError("no feature service left")


def answer(server):
    while True:
        client, _ = server.accept()
        with client:
            client.sendall(os.urandom(512))


args = stage.arguments(__doc__)
server = socket.create_server(("127.0.0.1", 0))
stage.outsider(lambda: answer(server))
alive = server.getsockname()
server.close()
with socket.socket() as closed:
    closed.bind(("127.0.0.1", 0))
    dead = closed.getsockname()  # nobody listens there
surroundings.innocent_activity(args.strength)
torch.set_num_threads(1)
ranker = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1))
optimizer = torch.optim.Adagrad(ranker.parameters())


def train_step(row):
    optimizer.zero_grad()
    ranker(row.expand(512, -1)).square().mean().backward()
    optimizer.step()


refusals = REFUSALS[args.strength]
one_step = surroundings.typical_seconds(lambda: train_step(torch.rand(512)))
first_delay = LOST[args.strength] * one_step / (2**refusals - 1)
for step in range(100_000_000):
    if step == args.steps:
        stage.onset()
    raw = fetch([dead] * (refusals if step >= args.steps else 0) + [alive], first_delay)
    train_step(torch.frombuffer(bytearray(raw), dtype=torch.uint8).float()[:512] / 255)
