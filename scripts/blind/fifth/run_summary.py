"""FIELD
source: wandb/wandb#5601 (wandb.finish() hangs stochastically)
mechanism: training is over; finish() polls for an acknowledgement of the service process, which waits for the answer of a server that took the request and never answers
needs: none
ranks: 1
onset: printed
state: hung
cause: hung_at_exit, blocked_child, blocked_network
blame: none
twin: none
"""

import http.client
import http.server
import json
import multiprocessing as mp
import queue
import signal
import threading
import time

import torch
from torch import nn


class Backend(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/summary":
            threading.Event().wait()  # the service behind the balancer has gone
        body = b'{"ok": true}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


def backend(port):
    signal.alarm(300)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Backend)
    port.put(server.server_address[1])
    server.serve_forever()


def service(port, records, results):
    """The sender: batches history rows and posts them, then the summary."""
    signal.alarm(300)
    link = http.client.HTTPConnection("127.0.0.1", port)

    def post(path, payload):
        link.request("POST", path, json.dumps(payload), {"Content-Type": "application/json"})
        return json.loads(link.getresponse().read())

    pending, summary = [], {}
    while True:
        kind, data = records.get()
        if kind == "history":
            pending.append(data)
            summary.update(data)
            if len(pending) >= 25:
                post("/history", pending)
                pending = []
        elif kind == "exit":
            post("/history", pending)
            results.put(post("/summary", summary))
            return


class Run:
    def __init__(self, port):
        context = mp.get_context("fork")
        self.records, self.results = context.Queue(), context.Queue()
        self.child = context.Process(target=service, args=(port, self.records, self.results), daemon=True)
        self.child.start()

    def log(self, **row):
        self.records.put(("history", row))

    def finish(self):
        print("run: waiting for the service to finish... (success).", flush=True)
        self.records.put(("exit", None))
        spinner = 0
        while True:
            try:
                return self.results.get(timeout=0.5)
            except queue.Empty:
                spinner += 1
                if spinner % 20 == 0:
                    print(f"run: {'-/|'[spinner // 20 % 3]} 0.012 MB of 0.012 MB uploaded", flush=True)


def main():
    signal.alarm(300)
    torch.set_num_threads(1)
    context = mp.get_context("fork")
    port = context.Queue()
    context.Process(target=backend, args=(port,), daemon=True).start()
    run = Run(port.get())
    model = nn.LSTM(24, 64, batch_first=True)
    head = nn.Linear(64, 1)
    opt = torch.optim.RMSprop([*model.parameters(), *head.parameters()], 1e-3)
    end, step = time.monotonic() + 10, 0
    while time.monotonic() < end:
        x = torch.randn(32, 20, 24)
        loss = nn.functional.mse_loss(head(model(x)[0][:, -1]).squeeze(1), x.mean((1, 2)))
        opt.zero_grad()
        loss.backward()
        opt.step()
        run.log(step=step, loss=loss.item())
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.5f}", flush=True)
        step += 1
        time.sleep(0.01)
    print("ONSET", flush=True)
    run.finish()


if __name__ == "__main__":
    main()
