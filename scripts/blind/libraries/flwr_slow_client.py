"""FIELD
source: londonaicentre/FLIP#763 and flwrlabs/flower#3703 (every round lasts as long as its slowest client: the server has no limit for
    stragglers)
mechanism: of two clients the second augments each batch in plain Python and takes ten times as long as the first; the first and the server
    wait for it in every round
needs: none
ranks: 1
onset: printed
state: slow, busy
cause: straggling_rank, serial_loading, starved_by_transforms, waiting_on_work
blame: augment (scripts/blind/libraries/flwr_slow_client.py), fit (scripts/blind/libraries/flwr_slow_client.py)
twin: flwr_rounds
"""

import os
import signal
import socket
import subprocess
import sys

signal.alarm(300)

import flwr
import torch
from flwr.client import start_client

torch.set_num_threads(1)
CLIENTS = 2


def build():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 24, 3), torch.nn.ReLU(), torch.nn.Conv2d(24, 48, 3, 2), torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(3), torch.nn.Flatten(), torch.nn.Linear(432, 10),
    )


def augment(images):
    rows = images.flatten(1).tolist()
    return torch.tensor([[max(-2.0, min(2.0, value * 1.1 + 0.01)) for value in row] for row in rows]).view_as(images)


class Hospital(flwr.client.NumPyClient):
    def __init__(self, number):
        self.number, self.net = number, build()
        self.images, self.labels = torch.randn(640, 1, 28, 28), torch.randint(0, 10, (640,))

    def get_parameters(self, config):
        return [value.numpy() for value in self.net.state_dict().values()]

    def fit(self, parameters, config):
        names = self.net.state_dict().keys()
        self.net.load_state_dict({name: torch.tensor(value) for name, value in zip(names, parameters, strict=True)})
        optimizer = torch.optim.SGD(self.net.parameters(), 0.01)
        for _ in range(3):
            for batch in torch.randperm(640).split(32):
                images = self.images[batch]
                for _ in range(8 if self.number == 1 else 0):
                    images = augment(images)
                loss = torch.nn.functional.cross_entropy(self.net(images), self.labels[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return self.get_parameters({}), 640, {"loss": loss.item()}

    def evaluate(self, parameters, config):
        with torch.no_grad():
            loss = torch.nn.functional.cross_entropy(self.net(self.images[:128]), self.labels[:128])
        return loss.item(), 128, {}


class Averaging(flwr.server.strategy.FedAvg):
    def aggregate_fit(self, server_round, results, failures):
        print("round", server_round, len(results), "clients", flush=True)
        if server_round == 2:
            print("ONSET", flush=True)
        return super().aggregate_fit(server_round, results, failures)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        start_client(server_address=f"127.0.0.1:{sys.argv[2]}", client=Hospital(int(sys.argv[1])).to_client())
        sys.exit()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for number in range(CLIENTS):
        subprocess.Popen([sys.executable, os.path.abspath(__file__), str(number), str(port)])
    flwr.server.start_server(
        server_address=f"127.0.0.1:{port}",
        config=flwr.server.ServerConfig(num_rounds=1_000_000),
        strategy=Averaging(min_fit_clients=2, min_available_clients=2),
    )
