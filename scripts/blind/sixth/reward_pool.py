"""FIELD
source: own: keep-alive pool of a reward model's HTTP client (kin of pools that block when none is free)
mechanism: the pool hands out six connections; on an answer of 503 the client raises before it gives the connection back, and the caller goes on with a
    neutral reward; after six such answers each thread that scores waits for a connection that no thread holds any more, and the learner waits for the scores
needs: none
ranks: 1
onset: printed
state: hung
cause: deadlocked_locks,unknown
blame: none
twin: none
"""
import http.client
import json
import multiprocessing
import queue
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
from torch import nn

VOCAB, LENGTH = 40, 16


class RewardHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    started = time.monotonic()

    def do_POST(self):
        tokens = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        overloaded = time.monotonic() - self.started > 20 and tokens[0] % 4 == 0
        body = b"" if overloaded else json.dumps(tokens.count(7) / len(tokens)).encode()
        self.send_response(503 if overloaded else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


def serve(ports):
    signal.alarm(310)
    RewardHandler.started = time.monotonic()
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), RewardHandler)
    httpd.daemon_threads = True
    ports.put(httpd.server_port)
    httpd.serve_forever()


class Overloaded(Exception):
    pass


class RewardClient:
    def __init__(self, port, size=6):
        self.free = queue.LifoQueue()
        for _ in range(size):
            self.free.put(http.client.HTTPConnection("127.0.0.1", port))

    def score(self, tokens):
        conn = self.free.get()
        conn.request("POST", "/score", json.dumps(tokens))
        response = conn.getresponse()
        body = response.read()
        if response.status == 503:
            raise Overloaded(response.reason)
        self.free.put(conn)
        return json.loads(body)


class Policy(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.embed, self.cell, self.out = nn.Embedding(VOCAB, 32), nn.GRUCell(32, hidden), nn.Linear(hidden, VOCAB)
        self.hidden = hidden

    def sample(self, n):
        h, token = torch.zeros(n, self.hidden), torch.randint(0, VOCAB, (n,))
        tokens, logp = [token], 0
        for _ in range(LENGTH - 1):
            h = self.cell(self.embed(token), h)
            dist = torch.distributions.Categorical(logits=self.out(h))
            token = dist.sample()
            logp = logp + dist.log_prob(token)
            tokens.append(token)
        return torch.stack(tokens, 1), logp


failures = 0


def careful(client, tokens):
    global failures
    try:
        return client.score(tokens)
    except Overloaded:
        failures += 1
        if failures == 1:
            print("reward server overloaded, neutral reward", flush=True)
            print("ONSET", flush=True)
        return 0.0


def main():
    signal.alarm(300)
    torch.set_num_threads(1)
    ports = multiprocessing.SimpleQueue()
    multiprocessing.Process(target=serve, args=(ports,), daemon=True).start()
    client = RewardClient(ports.get())
    policy = Policy()
    opt = torch.optim.Adam(policy.parameters(), 3e-3)
    baseline = 0.0
    with ThreadPoolExecutor(4, "score") as scorers:
        for step in range(10**6):
            tokens, logp = policy.sample(16)
            scores = torch.tensor(list(scorers.map(lambda t: careful(client, t), tokens.tolist())))
            baseline = 0.95 * baseline + 0.05 * scores.mean().item()
            loss = -((scores - baseline) * logp).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step % 100 == 0:
                print(f"step {step} reward {scores.mean():.3f}", flush=True)


if __name__ == "__main__":
    main()
