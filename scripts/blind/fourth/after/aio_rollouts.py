"""FIELD
source: own (groups of rollouts come from a server every half a minute)
mechanism: an asyncio trainer posts prompts to a rollout server and awaits the answer, which comes after thirty seconds in one piece; then it trains for two seconds; a coroutine beats every second
needs: none
ranks: 1
onset: printed
state: busy, slow, healthy
cause: any
blame: none
twin: none
"""

import asyncio
import multiprocessing as mp
import signal

import numpy as np
import torch

signal.alarm(300)
torch.set_num_threads(1)


def rollout_server(ready):
    signal.alarm(300)

    async def handle(reader, writer):
        while await reader.readexactly(8):
            await asyncio.sleep(30)
            writer.write(np.random.default_rng().standard_normal(64 * 64).astype("float32").tobytes())
            await writer.drain()

    async def serve():
        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        ready.put(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())


async def beat():
    while True:
        await asyncio.sleep(1)


async def train(port):
    keeper = asyncio.create_task(beat())
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    net = torch.nn.Linear(64, 64)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for group in range(10**6):
        writer.write(b"generate")
        await writer.drain()
        if group == 1:
            print("ONSET", flush=True)
        batch = torch.from_numpy(
            np.frombuffer(await reader.readexactly(64 * 64 * 4), dtype="float32").reshape(64, 64).copy()
        )
        for _ in range(1500):
            loss = (net(batch) - batch).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        print("group", group, loss.item(), flush=True)
    await keeper


if __name__ == "__main__":
    ready = mp.Queue()
    mp.get_context("fork").Process(target=rollout_server, args=(ready,), daemon=True).start()
    asyncio.run(train(ready.get()))
