"""FIELD
source: wandb/wandb#4441 ("Waiting for W&B process to finish", it is only very slow at uploading: 15 minutes), #4929
mechanism: looks like a hang in finish(): training is over and the program polls for the uploader process, which sends a checkpoint over a link of some 150 KB/s; bytes move all the time, it would end after four minutes
needs: none
ranks: 1
onset: printed
state: busy
cause: waiting_on_work, checkpointing
blame: none
twin: none
"""

import multiprocessing as mp
import os
import queue
import signal
import socket
import tempfile
import time

import torch
from torch import nn

CHUNK = 32 * 1024


def storage(ports):
    """The object store behind a thin line."""
    signal.alarm(300)
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2 * CHUNK)
    ports.put(listener.getsockname()[1])
    while True:
        peer, _ = listener.accept()
        left = int.from_bytes(peer.recv(8), "big")
        while left:
            part = peer.recv(min(left, CHUNK))
            if not part:
                break
            left -= len(part)
            time.sleep(len(part) / 150_000)
        peer.sendall(b"ok")
        peer.close()


class Uploader:
    def __init__(self, port):
        context = mp.get_context("fork")
        self.jobs, self.done = context.Queue(), context.Queue()
        self.sent = context.Value("q", 0)
        self.size = 0
        self.process = context.Process(target=self._loop, args=(port,), daemon=True, name="uploader")
        self.process.start()

    def _loop(self, port):
        signal.alarm(300)
        while (path := self.jobs.get()) is not None:
            with open(path, "rb") as file, socket.create_connection(("127.0.0.1", port)) as link:
                link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * CHUNK)
                link.sendall(os.path.getsize(path).to_bytes(8, "big"))
                while part := file.read(CHUNK):
                    link.sendall(part)
                    self.sent.value += len(part)
                self.done.put(link.recv(2))

    def push(self, path):
        self.size = os.path.getsize(path)
        self.sent.value = 0
        self.jobs.put(path)

    def finish(self):
        while True:
            try:
                return self.done.get(timeout=5)
            except queue.Empty:
                print(f"upload: {self.sent.value / 1e6:.2f} of {self.size / 1e6:.2f} MB", flush=True)


def small_autoencoder():
    return nn.Sequential(nn.Linear(2048, 1024), nn.ReLU(), nn.Linear(1024, 64), nn.Linear(64, 1024), nn.ReLU(),
                         nn.Linear(1024, 2048))


def main():
    signal.alarm(300)
    torch.set_num_threads(1)
    context = mp.get_context("fork")
    ports = context.Queue()
    context.Process(target=storage, args=(ports,), daemon=True).start()
    uploader = Uploader(ports.get())
    model = small_autoencoder()
    opt = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    end, step = time.monotonic() + 10, 0
    while time.monotonic() < end:
        x = torch.randn(16, 2048)
        loss = nn.functional.mse_loss(model(x), x)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        step += 1
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "final.pt")
        torch.save({"model": model.state_dict(), "moments": opt.state_dict()}, path)
        uploader.push(path)
        print("training is over, waiting for the upload to finish ...")
        print("ONSET", flush=True)
        uploader.finish()
    print("uploaded")


if __name__ == "__main__":
    main()
