"""FIELD
source: own
mechanism: an asyncio trainer fetches the archive of the next stage over a thin line: the loop sits in epoll almost all the
    time and makes no steps, but bytes arrive steadily and a progress bar moves
needs: none
ranks: 1
onset: printed
state: busy
cause: downloading
blame: none
twin: none
"""

import asyncio
import multiprocessing
import os
import signal
import socket
import tempfile
import time

import torch
from tqdm import tqdm

RATE, SMALL, LARGE = 200_000, 400_000, 50_000_000


def mirror(listener):
    """Serves as many bytes as it is asked for, at RATE."""
    signal.alarm(300)

    async def serve(reader, writer):
        left = int(await reader.readline())
        block = os.urandom(20_000)
        while left > 0:
            writer.write(block[:left])
            left -= len(block)
            await writer.drain()
            await asyncio.sleep(len(block) / RATE)
        writer.close()

    async def main():
        server = await asyncio.start_server(serve, sock=listener)
        await server.serve_forever()

    asyncio.run(main())


async def pull(port, size, path):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{size}\n".encode())
    with open(path, "wb") as file, tqdm(total=size, unit="B", unit_scale=True, mininterval=5, desc=path.rsplit("/")[-1]) as bar:
        while part := await reader.read(1 << 16):
            file.write(part)
            bar.update(len(part))
    writer.close()
    return path


def windows(path, count=32, length=256):
    raw = torch.frombuffer(bytearray(open(path, "rb").read()), dtype=torch.uint8)
    while True:
        at = torch.randint(len(raw) - length - 1, (count,))
        yield torch.stack([raw[a : a + length + 1] for a in at.tolist()]).long()


async def stage(model, opt, path, seconds):
    end = time.monotonic() + seconds
    for step, ids in enumerate(windows(path)):
        hidden = torch.tanh(model[1](model[0](ids[:, :-1])).cumsum(1) / 16)
        loss = torch.nn.functional.cross_entropy(model[2](hidden).flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 25 == 0:
            print(f"{os.path.basename(path)} step {step} loss {loss.item():.3f}", flush=True)
            await asyncio.sleep(0)
        if time.monotonic() > end:
            return


async def curriculum(port, folder):
    model = torch.nn.ModuleList([torch.nn.Embedding(256, 32), torch.nn.Linear(32, 64), torch.nn.Linear(64, 256)])
    opt = torch.optim.Adam(model.parameters(), 3e-3)
    first = await pull(port, SMALL, os.path.join(folder, "part-1.bin"))
    await stage(model, opt, first, 15)
    print("stage 2 needs part-2.bin")
    print("ONSET", flush=True)
    second = await pull(port, LARGE, os.path.join(folder, "part-2.bin"))
    await stage(model, opt, second, 3600)


if __name__ == "__main__":
    signal.alarm(300)
    torch.set_num_threads(1)
    door = socket.create_server(("127.0.0.1", 0))
    multiprocessing.get_context("fork").Process(target=mirror, args=(door,), daemon=True, name="mirror").start()
    with tempfile.TemporaryDirectory() as scratch:
        asyncio.run(curriculum(door.getsockname()[1], scratch))
