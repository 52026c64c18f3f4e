"""FIELD
source: https://github.com/wandb/wandb/issues/919
mechanism: training is over; the tracker's exit hook waits for an uploader thread that tries to reach a server which accepts and never answers
needs: none
ranks: 1
onset: printed
state: hung
cause: hung_at_exit, blocked_network
blame: finish (waits), _upload (reads from the silent server)
twin: none
"""
import atexit
import signal
import socket
import threading

import torch

signal.alarm(300)
torch.set_num_threads(1)


class Tracker:
    def __init__(self, address):
        self.address, self.rows, self.closing = address, [], threading.Event()
        self.uploader = threading.Thread(target=self._upload, daemon=True, name="uploader")
        self.uploader.start()
        atexit.register(self.finish)

    def log(self, **values):
        self.rows.append(values)

    def _upload(self):
        self.closing.wait()
        with socket.create_connection(self.address) as connection:
            connection.sendall(repr(self.rows).encode())
            connection.recv(1024)

    def finish(self):
        self.closing.set()
        self.uploader.join()
        print("run synced", flush=True)


silent = socket.create_server(("127.0.0.1", 0))
tracker = Tracker(silent.getsockname())
model = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(250):
    x = torch.randn(8, 32, 64)
    loss = (model(x) - x).abs().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    tracker.log(step=step, loss=loss.item())
    if step % 25 == 0:
        print("step", step, loss.item(), flush=True)
print("training finished", flush=True)
print("ONSET", flush=True)
