"""A training program that waits for the other end of a socket: a server, a relay, a scheduler or a reducer."""

import http.client
import http.server
import multiprocessing
import os
import pickle
import socket
import socketserver
import sqlite3
import tempfile
import threading
import time

import numpy as np
import torch
from common import condition, onset, outsider, train

LOCAL = ("127.0.0.1", 0)


class RewardHandler(socketserver.BaseRequestHandler):
    def handle(self):
        samples = int(self.request.recv(16))
        self.request.sendall(b"%.6f" % self.score(samples))

    def score(self, samples):
        reward, end = torch.nn.Linear(256, 1), time.monotonic() + 150
        while time.monotonic() < end:
            with torch.no_grad():
                best = reward(torch.randn(samples, 256)).max()
        return best.item()


def train_on_rewards():
    server = socketserver.ThreadingTCPServer(LOCAL, RewardHandler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    _, step = train()
    with socket.create_connection(server.server_address) as rewards:
        rewards.sendall(b"512")
        onset()
        print("reward", float(rewards.recv(16)), step())


def relay_metrics(link, interval=125):
    metrics = link.recv(64)
    time.sleep(interval)
    link.sendall(b"accepted %d bytes" % len(metrics))


class MetricsLink:
    def __init__(self):
        self.link, theirs = socket.socketpair()
        multiprocessing.Process(target=relay_metrics, args=(theirs,), daemon=True).start()
        theirs.close()

    def report(self, loss):
        self.link.sendall(b"loss %.4f" % loss)
        onset()
        return self.link.recv(64)


def train_and_report():
    link = MetricsLink()
    _, step = train()
    print(link.report(step()))


class Scheduler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        end = time.monotonic() + 155
        while time.monotonic() < end:
            self.plan = np.argsort(np.random.default_rng().normal(size=300_000))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(str(self.plan[:8].tolist()).encode())


def fetch_plan(port):
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/plan")
    onset()
    return connection.getresponse().read()


def train_to_plan():
    server = http.server.HTTPServer(LOCAL, Scheduler)
    outsider(server.serve_forever)
    server.server_close()
    _, step = train()
    print("plan", fetch_plan(server.server_port), step())


class FeatureStore(threading.Thread):
    """Answers one query for each line that it gets on a Unix socket."""

    QUERY = """WITH RECURSIVE visits(id, hash) AS (
        SELECT 1, 1 UNION ALL SELECT id + 1, (hash * 1103515245 + 12345) % 2147483648 FROM visits WHERE id < ?
    ) SELECT avg(hash) FROM visits"""

    def __init__(self, path):
        super().__init__(daemon=True)
        self.server = socket.create_server(path, family=socket.AF_UNIX)

    def run(self):
        client, _ = self.server.accept()
        with client, client.makefile("rw") as lines, sqlite3.connect(":memory:") as database:
            for line in lines:
                (mean,) = database.execute(self.QUERY, (int(line),)).fetchone()
                print(mean, file=lines, flush=True)


def train_on_features(visits=1_500_000_000):
    client = socket.socket(socket.AF_UNIX)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "features")
        FeatureStore(path).start()
        client.connect(path)
    _, step = train()
    with client, client.makefile("rw") as store:
        print(visits, file=store, flush=True)
        onset()
        print("mean", store.readline(), step())


class BatchServer:
    def __init__(self, batches):
        self.batches = batches
        self.listener = socket.create_server(LOCAL)
        threading.Thread(target=self.serve, name="batch-server", daemon=True).start()

    def serve(self):
        try:
            while True:
                batch = pickle.dumps(next(self.batches))
                client, _ = self.listener.accept()
                with client:
                    client.sendall(batch)
        except Exception as error:
            print("batch server:", repr(error))

    def fetch(self):
        with socket.create_connection(self.listener.getsockname()) as connection, connection.makefile("rb") as answer:
            return pickle.load(answer)


def load_batches():
    for size in ("512", "512", "five hundred"):
        yield np.random.default_rng().normal(size=(int(size), 256)).astype(np.float32)


def train_on_served_batches():
    server = BatchServer(load_batches())
    _, step = train()
    for _ in range(2):
        step(torch.from_numpy(server.fetch()))
    onset()
    step(torch.from_numpy(server.fetch()))


def reduce_gradients(trainer, validator):
    gradient = np.frombuffer(trainer.recv(1024), np.float32)
    validator.sendall(gradient[:1].tobytes())
    if validator.recv(4) == b"good":
        trainer.sendall((gradient * 0.1).tobytes())


def validate_gradients(reducer, trainer):
    reducer.recv(4)
    loss = np.frombuffer(trainer.recv(8), np.float64)
    reducer.sendall(b"good" if np.isfinite(loss).all() else b"null")


def start_service(serve, ours, theirs):
    def run():
        for link in ours:
            link.close()
        serve(*theirs)

    multiprocessing.Process(target=run, name=serve.__name__, daemon=True).start()
    for link in theirs:
        link.close()


def train_with_services():
    reducer, reducer_trainer = socket.socketpair()
    validator, validator_trainer = socket.socketpair()
    reducer_validator, validator_reducer = socket.socketpair()
    ours = (reducer, validator)
    start_service(reduce_gradients, (*ours, validator_reducer, validator_trainer), (reducer_trainer, reducer_validator))
    start_service(validate_gradients, ours, (validator_reducer, validator_trainer))
    _, step = train()
    loss = step()
    reducer.sendall(np.full(256, loss, np.float32).tobytes())
    onset()
    update = reducer.recv(1024)
    validator.sendall(np.float64(step() + len(update)).tobytes())


if __name__ == "__main__":
    {
        "works": train_on_rewards,
        "sleeps": train_and_report,
        "outside": train_to_plan,
        "native": train_on_features,
        "gone": train_on_served_batches,
        "cycle": train_with_services,
    }[condition()]()
