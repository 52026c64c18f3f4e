"""FIELD
source: huggingface/datasets#7440, #6172 (streaming: "Retrying in 1s [Retry 1/5]", the training crawls)
mechanism: the shard server begins to answer most requests with 503; the streaming worker retries each of them after a pause, and the training waits for it
needs: none
ranks: 1
onset: printed
state: slow
cause: retrying, starved_by_network
blame: get_with_retries () in workers
twin: none
"""

import asyncio
import logging
import multiprocessing as mp
import signal
import time
import urllib.error
import urllib.request

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

logger = logging.getLogger("streaming")


async def hub(ports, degraded_after):
    """A very small hub: 64 KiB per chunk; overloaded after a while."""
    begin, asked = time.monotonic(), 0

    async def answer(reader, writer):
        nonlocal asked
        await reader.readuntil(b"\r\n\r\n")
        asked += 1
        await asyncio.sleep(0.005)
        if time.monotonic() - begin > degraded_after and asked % 4:
            writer.write(b"HTTP/1.0 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
        else:
            body = np.random.default_rng(asked).standard_normal(16384).astype(np.float32).tobytes()
            writer.write(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    ports.put(server.sockets[0].getsockname()[1])
    async with server:
        await server.serve_forever()


def serve(ports, degraded_after):
    signal.alarm(300)
    asyncio.run(hub(ports, degraded_after))


def get_with_retries(url, retries=5, interval=0.4):
    for retry in range(1, retries + 1):
        try:
            with urllib.request.urlopen(url, timeout=20) as response:
                return response.read()
        except urllib.error.HTTPError as error:
            logger.warning("'%s' thrown while requesting GET %s", error, url)
            logger.warning("Retrying in %.1fs [Retry %d/%d].", interval * retry, retry, retries)
            time.sleep(interval * retry)
    raise ConnectionError(f"server disconnected: {url}")


class Stream(IterableDataset):
    def __init__(self, base):
        self.base = base

    def __iter__(self):
        chunk = 0
        while True:
            raw = get_with_retries(f"{self.base}/train/chunk{chunk}.bin")
            rows = torch.frombuffer(bytearray(raw), dtype=torch.float32).view(-1, 128)
            for row in rows:
                yield row, row[:8].sum()
            chunk += 1


def init(_worker):
    signal.alarm(300)


def main():
    signal.alarm(300)
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    context = mp.get_context("fork")
    ports = context.Queue()
    context.Process(target=serve, args=(ports, 9), daemon=True).start()
    loader = DataLoader(Stream(f"http://127.0.0.1:{ports.get()}"), batch_size=64, num_workers=1, worker_init_fn=init)
    model = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))
    opt = torch.optim.AdamW(model.parameters(), 3e-4)
    begin, told = time.monotonic(), False
    for step, (x, y) in enumerate(loader):
        loss = nn.functional.huber_loss(model(x).squeeze(1), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.015)
        if step % 40 == 0 or told and step % 4 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if not told and time.monotonic() - begin > 10:
            told = True
            print("ONSET", flush=True)


if __name__ == "__main__":
    main()
