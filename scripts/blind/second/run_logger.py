"""FIELD
source: nschloe/tuna#178 and python/cpython#76699 (a single-threaded socketserver serves one persistent connection and never gets to the second)
mechanism: the collector serves the monitor's persistent connection only; the trainer's connection stays in the backlog, and sendall blocks once the socket buffers are full
needs: cpu
ranks: 1
onset: printed
state: hung
cause: blocked_network
blame: histograms (run_logger.py)
twin: none
"""
import json
import os
import socket
import subprocess
import sys
import threading
import time

import torch
import torch.nn as nn

torch.set_num_threads(1)

COLLECTOR = r"""
import json, socketserver
class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            record = json.loads(line)
            self.server.seen = getattr(self.server, "seen", 0) + len(record)
with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
    print(server.server_address[1], flush=True)
    server.serve_forever()
"""


def system_monitor(port):
    link = socket.create_connection(("127.0.0.1", port))
    while True:
        load = os.getloadavg()
        link.sendall((json.dumps({"load": load, "time": time.time()}) + "\n").encode())
        time.sleep(1)


class TrainLog:
    def __init__(self, port):
        self.link = socket.create_connection(("127.0.0.1", port))

    def histograms(self, model, step):
        for name, p in model.named_parameters():
            record = {"step": step, "name": name, "values": p.detach().flatten().tolist()}
            self.link.sendall((json.dumps(record) + "\n").encode())


def main():
    collector = subprocess.Popen([sys.executable, "-c", COLLECTOR], stdout=subprocess.PIPE, text=True)
    port = int(collector.stdout.readline())
    threading.Thread(target=system_monitor, args=(port,), daemon=True).start()
    model = nn.Sequential(nn.Linear(300, 600), nn.ReLU(), nn.Linear(600, 300))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    base = torch.randn(4000, 300)
    log, started = None, time.time()
    for step in range(300000):
        x = base[torch.randint(0, 4000, (256,))]
        loss = nn.functional.mse_loss(model(x), x.tanh())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 500 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if log is None and time.time() - started > 9:
            log = TrainLog(port)
            print("ONSET", flush=True)
        if log is not None and step % 50 == 0:
            log.histograms(model, step)


if __name__ == "__main__":
    main()
