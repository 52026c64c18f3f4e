"""FIELD
source: own (Flower's server and two clients on one machine, as its PyTorch quick start has them)
mechanism: the main process is the server of federated averaging; two client processes fit a small network for some seconds in every round;
    nothing is wrong
needs: none
ranks: 1
onset: printed
state: healthy, busy
cause: cpu_training, balanced, waiting_on_work
blame: none
twin: flwr_min_clients
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
                loss = torch.nn.functional.cross_entropy(self.net(self.images[batch]), self.labels[batch])
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
        if server_round == 3:
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
