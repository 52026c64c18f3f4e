"""Every batch comes from a feature service that refuses most connections: connect, fail, wait longer, try again."""

import os
import socket
import time

import stage
import surroundings
import torch

REFUSALS = {"loud": 4, "quiet": 2, "masked": 1}


def fetch(addresses):
    delay = 0.012
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
for step in range(100_000_000):
    if step == args.steps:
        stage.onset()
    raw = fetch([dead] * (REFUSALS[args.strength] if step >= args.steps else 0) + [alive])
    features = torch.frombuffer(bytearray(raw), dtype=torch.uint8).float()[:512] / 255
    optimizer.zero_grad()
    ranker(features.expand(512, -1)).square().mean().backward()
    optimizer.step()
