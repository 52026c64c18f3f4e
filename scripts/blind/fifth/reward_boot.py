"""FIELD
source: flwrlabs/flower#1086 and huggingface/huggingface_hub#3647 (clients that back off until a server is up again)
mechanism: every phase the trainer tells its reward server, a child, to take new weights; at the second reload the
    server closes its port and recalibrates for minutes; the trainer is refused and backs off, at most 20 s a time
needs: none
ranks: 1
onset: printed
state: busy, slow
cause: waiting_on_work, retrying, starved_by_network
blame: none
twin: none
"""
import ctypes
import http.client
import json
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np

log = logging.getLogger("ppo")


def calibrate(weights, passes):
    """Find the clipping range of each layer by search over a calibration set."""
    data = np.random.default_rng(0).normal(size=(512, 256)).astype(np.float32)
    for _ in range(passes):
        for clip in np.linspace(0.5, 1.0, 40):
            limit = np.abs(weights).max() * clip
            error = ((data @ weights - data @ np.clip(weights, -limit, limit)) ** 2).mean()
            weights = weights * (1 - 1e-9 * float(error))
    return weights


def serve(port):
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    signal.alarm(300)
    state = {"weights": np.random.default_rng(1).normal(size=(256, 256)).astype(np.float32), "reload": False, "n": 0}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/reload":
                state["reload"] = True
                answer = {"ok": True}
            else:
                answer = {"rewards": [float(np.tanh(sum(r) / 9 + state["weights"][0, 0])) for r in body["actions"]]}
            blob = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(blob)))
            self.end_headers()
            self.wfile.write(blob)

        def log_message(self, *args):
            pass

    while True:
        with HTTPServer(("127.0.0.1", port), Handler) as server:
            while not state["reload"]:
                server.handle_request()
        state["reload"], state["n"] = False, state["n"] + 1
        state["weights"] = calibrate(state["weights"], 1 if state["n"] == 1 else 4000)


class RewardClient:
    def __init__(self, port, cap=20.0):
        self.port, self.cap = port, cap

    def call(self, path, payload, attempts=60):
        delay = 0.5
        for attempt in range(attempts):
            try:
                link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
                link.request("POST", path, json.dumps(payload), {"Content-Type": "application/json"})
                return json.loads(link.getresponse().read())
            except (ConnectionError, http.client.HTTPException):
                log.debug("attempt %d refused", attempt)
                time.sleep(delay * random.uniform(0.8, 1.0))
                delay = min(delay * 2, self.cap)
            finally:
                link.close()
        raise RuntimeError("the reward server did not come up")


def main():
    import torch
    from torch import nn

    signal.alarm(300)
    torch.set_num_threads(1)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    env = dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    server = subprocess.Popen([sys.executable, __file__, "--serve", str(port)], env=env)
    policy = nn.Sequential(nn.Linear(32, 256), nn.Tanh(), nn.Linear(256, 16 * 6))
    opt = torch.optim.Adam(policy.parameters(), 3e-4)
    rewards, began, step, phase = RewardClient(port), time.time(), 0, 0
    while server.poll() is None:
        obs = torch.randn(64, 32)
        dist = torch.distributions.Categorical(logits=policy(obs).view(64, 16, 6))
        actions = dist.sample()
        reward = torch.tensor(rewards.call("/score", {"actions": actions.tolist()})["rewards"])
        advantage = (reward - reward.mean()) / (reward.std() + 1e-6)
        loss = -(dist.log_prob(actions).sum(-1) * advantage).mean() - 0.01 * dist.entropy().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if step % 20 == 0:
            print(f"step {step} reward {reward.mean():.3f}", flush=True)
        if phase < 2 and time.time() - began > 5 * (phase + 1):
            phase += 1
            rewards.call("/reload", {"phase": phase})
            if phase == 2:
                print("ONSET", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(int(sys.argv[2]))
    else:
        main()
