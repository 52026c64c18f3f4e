"""FIELD
source: wandb/wandb#4929 and ai2cm/ace#398 (finish() prints "3859 of 3859 MB uploaded" for ever after the last epoch)
mechanism: training is over; finish() turns a spinner until the sender thread reports that the server has confirmed
    the summary; the server process took the bytes and lost the request, so the sender stays in recv
needs: none
ranks: 1
onset: printed
state: hung
cause: hung_at_exit, blocked_network, endless_python
blame: any
twin: none
"""
import atexit
import itertools
import json
import os
import queue
import signal
import socket
import sys
import threading
import time

import torch


def server(listener):
    """Confirms history records; a summary is put on a list that nobody looks at."""
    connection, _ = listener.accept()
    lost = []
    for line in connection.makefile("rb"):
        record = json.loads(line)
        if record["kind"] == "summary":
            lost.append(record)
            continue
        connection.sendall(b'{"ok": true}\n')


class Run:
    def __init__(self, project):
        self.project, self.sent, self.total = project, 0, 0
        listener = socket.create_server(("127.0.0.1", 0))
        self.pid = os.fork()
        if self.pid == 0:
            signal.alarm(300)
            server(listener)
            os._exit(0)
        self.connection = socket.create_connection(listener.getsockname())
        listener.close()
        self.records, self.finished = queue.SimpleQueue(), threading.Event()
        self.sender = threading.Thread(target=self._send, name="SenderThread", daemon=True)
        self.sender.start()
        atexit.register(self.finish)

    def _send(self):
        answers = self.connection.makefile("rb")
        while True:
            record = self.records.get()
            data = json.dumps(record).encode() + b"\n"
            self.connection.sendall(data)
            self.sent += len(data)
            json.loads(answers.readline())
            if record["kind"] == "summary":
                self.finished.set()
                return

    def _put(self, kind, **values):
        record = {"kind": kind, "project": self.project, **values}
        self.total += len(json.dumps(record)) + 1
        self.records.put(record)

    def log(self, **values):
        self._put("history", **values)

    def finish(self):
        print("ONSET", flush=True)
        self._put("summary", exit=0)
        for sign in itertools.cycle("-\\|/"):
            if self.finished.wait(0.2):
                break
            sys.stderr.write(f"\rtracker: {sign} {self.sent / 1e6:.3f} MB of {self.total / 1e6:.3f} MB uploaded")
            sys.stderr.flush()
        os.waitpid(self.pid, 0)


def epochs(model, data, count):
    x, y = data
    opt = torch.optim.SGD(model.parameters(), lr=0.1, nesterov=True, momentum=0.9)
    for epoch in range(count):
        order = torch.randperm(len(x))
        for start in range(0, len(x), 64):
            batch = order[start : start + 64]
            loss = torch.nn.functional.binary_cross_entropy_with_logits(model(x[batch]).squeeze(1), y[batch])
            opt.zero_grad()
            loss.backward()
            opt.step()
            time.sleep(0.02)
            yield epoch, loss.item()


def main():
    signal.alarm(300)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x = torch.randn(4096, 30)
    y = ((x[:, :5] ** 2).sum(1) > 5).float()
    model = torch.nn.Sequential(
        torch.nn.Linear(30, 200), torch.nn.BatchNorm1d(200), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(200, 1)
    )
    run = Run("tabular")
    for step, (epoch, loss) in enumerate(epochs(model, (x, y), 10)):
        run.log(step=step, epoch=epoch, loss=loss)
    print(f"done after {step + 1} steps, loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
