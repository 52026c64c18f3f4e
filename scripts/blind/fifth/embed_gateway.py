"""FIELD
source: own: an embedding server with dynamic batching, forward only, with few requests at night
mechanism: asyncio gateway, a batcher that collects requests for some milliseconds, the model in an executor thread; a
    client process sends bursts and then is quiet for 5 to 15 s; no optimizer anywhere, the main thread sits in epoll
needs: none
ranks: 1
onset: printed
state: healthy, busy
cause: any
blame: none
twin: none
"""
import asyncio
import ctypes
import json
import multiprocessing as mp
import random
import signal
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self, width=192, depth=6):
        super().__init__()
        self.embed = nn.Embedding(1000, width)
        layer = nn.TransformerEncoderLayer(width, 6, 4 * width, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)

    def forward(self, ids):
        return nn.functional.normalize(self.blocks(self.embed(ids)).mean(1), dim=-1)


class Batcher:
    def __init__(self, model, most=16, patience=0.02):
        self.model, self.most, self.patience = model.eval(), most, patience
        self.queue = asyncio.Queue()
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="model")
        self.sizes, self.latencies = [], []

    async def embed(self, ids):
        done = asyncio.get_running_loop().create_future()
        began = time.perf_counter()
        await self.queue.put((ids, done))
        vector = await done
        self.latencies.append(time.perf_counter() - began)
        return vector

    def _forward(self, rows):
        longest = max(map(len, rows))
        with torch.inference_mode():
            return self.model(torch.tensor([r + [0] * (longest - len(r)) for r in rows])).tolist()

    async def run(self):
        loop = asyncio.get_running_loop()
        while True:
            batch = [await self.queue.get()]
            limit = loop.time() + self.patience
            while len(batch) < self.most and (left := limit - loop.time()) > 0:
                try:
                    batch.append(await asyncio.wait_for(self.queue.get(), left))
                except TimeoutError:
                    break
            vectors = await loop.run_in_executor(self.pool, self._forward, [ids for ids, _ in batch])
            self.sizes.append(len(batch))
            for (_, done), vector in zip(batch, vectors, strict=True):
                done.set_result(vector)


async def report(batcher):
    while True:
        await asyncio.sleep(10)
        if batcher.latencies:
            p50 = statistics.median(batcher.latencies[-500:]) * 1e3
            print(f"served {len(batcher.latencies)} batches {len(batcher.sizes)} p50 {p50:.0f} ms", flush=True)


def client(port):
    """Other services of the company."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    signal.alarm(300)
    rng, began = random.Random(11), time.time()

    async def one():
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        ids = [rng.randrange(1000) for _ in range(rng.randint(20, 120))]
        writer.write(json.dumps(ids).encode() + b"\n")
        await reader.readline()
        writer.close()

    async def traffic():
        while True:
            early = time.time() - began < 10
            await asyncio.gather(*[one() for _ in range(rng.randint(8, 60))])
            await asyncio.sleep(0.3 if early else rng.uniform(5, 15))

    asyncio.run(traffic())


async def serve():
    batcher = Batcher(Encoder())

    async def handle(reader, writer):
        ids = json.loads(await reader.readline())
        writer.write(json.dumps(await batcher.embed(ids)).encode() + b"\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, limit=2**20)
    port = server.sockets[0].getsockname()[1]
    mp.get_context("fork").Process(target=client, args=(port,), daemon=True).start()
    jobs = [asyncio.create_task(batcher.run()), asyncio.create_task(report(batcher))]
    await asyncio.sleep(11)
    print("ONSET", flush=True)
    await asyncio.gather(server.serve_forever(), *jobs)


if __name__ == "__main__":
    signal.alarm(300)
    torch.set_num_threads(1)
    asyncio.run(serve())
