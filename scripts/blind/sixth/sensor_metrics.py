"""FIELD
source: empicano/aiomqtt#174, run_coroutine_threadsafe(...).result() called from the event loop itself, rebuilt as a telemetry client of an asyncio trainer
mechanism: scalars are published from an executor thread and fit the socket's buffer; when histograms start to be published from the loop, the first payload that does
    not fit makes the client register a writer: it submits a coroutine to the loop it runs on and blocks for the result
needs: none
ranks: 1
onset: printed
state: hung
cause: deadlocked_locks,unknown
blame: none
twin: none
"""
import asyncio
import json
import multiprocessing
import signal
import socket
import threading
import time

import torch
from torch import nn


def broker(listener):
    """Swallows what comes, and counts it."""
    signal.alarm(310)
    conn, _ = listener.accept()
    total = 0
    while data := conn.recv(1 << 16):
        total += len(data)
        time.sleep(0.02)  # writes to its log


class Telemetry:
    """Line protocol over a non-blocking socket. publish() may be called from any thread."""

    def __init__(self, loop, address):
        self.loop = loop
        self.sock = socket.create_connection(address)
        self.sock.setblocking(False)
        self.out = bytearray()
        self.lock = threading.RLock()
        self.writing = False

    def publish(self, topic, payload):
        line = json.dumps({"t": topic, "p": payload}).encode() + b"\n"
        with self.lock:
            self.out += line
            self._flush()
            if self.out and not self.writing:
                self._register_write()

    def _flush(self):
        while self.out:
            try:
                sent = self.sock.send(self.out)
            except BlockingIOError:
                return
            del self.out[:sent]

    def _writable(self):
        with self.lock:
            self._flush()
            if not self.out:
                self.loop.remove_writer(self.sock)
                self.writing = False

    def _register_write(self):
        # add_writer() is not thread-safe, publish() usually runs in the executor
        async def register():
            self.loop.add_writer(self.sock, self._writable)

        asyncio.run_coroutine_threadsafe(register(), self.loop).result()
        self.writing = True


class Forecaster(nn.Module):
    def __init__(self, sensors=12, hidden=64):
        super().__init__()
        self.rnn = nn.GRU(sensors, hidden, batch_first=True)
        self.out = nn.Linear(hidden, sensors)

    def forward(self, x):
        return self.out(self.rnn(x)[0])


async def windows(queue):
    gen = torch.Generator().manual_seed(7)
    t = torch.arange(33) / 5
    while True:
        phase = torch.rand(32, 1, 12, generator=gen) * 6.28
        await queue.put(torch.sin(t[None, :, None] + phase) + 0.05 * torch.randn(32, 33, 12, generator=gen))
        await asyncio.sleep(0.01)


async def main(address):
    loop = asyncio.get_running_loop()
    tele = Telemetry(loop, address)
    queue = asyncio.Queue(8)
    feeder = asyncio.create_task(windows(queue))
    net = Forecaster()
    opt = torch.optim.Adam(net.parameters(), 2e-3)
    begin, step, histograms = loop.time(), 0, False
    while not feeder.done():
        x = await queue.get()
        loss = nn.functional.mse_loss(net(x[:, :-1]), x[:, 1:])
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        await loop.run_in_executor(None, tele.publish, "loss", loss.item())
        if not histograms and loop.time() - begin > 22:
            histograms = True
            print("gradient histograms on", flush=True)
            print("ONSET", flush=True)
        if histograms and step % 5 == 0:
            for name, p in net.named_parameters():
                tele.publish(f"hist/{name}", p.grad.flatten().tolist() * 8)
        if step % 200 == 0:
            print(f"step {step} mse {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    signal.alarm(300)
    torch.set_num_threads(1)
    server = socket.create_server(("127.0.0.1", 0))
    server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    multiprocessing.Process(target=broker, args=(server,), daemon=True).start()
    asyncio.run(main(server.getsockname()))
