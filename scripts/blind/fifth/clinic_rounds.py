"""FIELD
source: flwrlabs/flower#2515, Project-MONAI/tutorials#852 (rounds that take minutes; "server asked to try again")
mechanism: the site trains 15 s per round, uploads, then rests in a long poll until the aggregator, a child, has the
    updates of its (simulated) other sites, 30 to 55 s later; then the next round begins, over and over
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
import io
import logging
import multiprocessing as mp
import random
import signal
import struct
import time

import numpy as np
import torch
from torch import nn

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
log = logging.getLogger("site-2")


async def receive(reader):
    (size,) = struct.unpack("!I", await reader.readexactly(4))
    return np.load(io.BytesIO(await reader.readexactly(size)))


def frame(vector):
    blob = io.BytesIO()
    np.save(blob, vector)
    return struct.pack("!I", blob.tell()) + blob.getvalue()


class Aggregator:
    """FedAvg; the other sites are cheap stand-ins that take their time."""

    def __init__(self):
        self.vector, self.round, self.rng = None, 0, random.Random(3)

    async def other_site(self, seconds):
        noise = np.random.default_rng(self.round)
        until, update = time.monotonic() + seconds, self.vector.copy()
        while time.monotonic() < until:
            update -= 1e-4 * np.sign(update) + 1e-5 * noise.normal(size=update.size)
            await asyncio.sleep(0.25)
        return update

    async def handle(self, reader, writer):
        while True:
            mine = await receive(reader)
            self.vector = mine if self.vector is None else (self.vector + mine) / 2
            waits = [1, 2] if self.round < 2 else [self.rng.uniform(30, 55), self.rng.uniform(20, 40)]
            others = await asyncio.gather(*[self.other_site(s) for s in waits])
            self.vector = np.mean([mine, *others], axis=0)
            self.round += 1
            writer.write(frame(self.vector))
            await writer.drain()

    async def main(self, pipe):
        server = await asyncio.start_server(self.handle, "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        async with server:
            await server.serve_forever()


def aggregate(pipe):
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    signal.alarm(300)
    asyncio.run(Aggregator().main(pipe))


def local_epoch(model, opt, seconds):
    until, losses = time.monotonic() + seconds, []
    while time.monotonic() < until:
        scans = torch.randn(8, 1, 48, 48)
        masks = (scans.roll(1, -1) > 0.7).float()
        loss = nn.functional.binary_cross_entropy_with_logits(model(scans), masks)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return sum(losses) / len(losses), len(losses)


async def site(port, model):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for number in range(100):
        opt = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
        if number == 2:
            print("ONSET", flush=True)
        loss, steps = local_epoch(model, opt, 3 if number < 2 else 15)
        log.info("round %d: %d local steps, loss %.4f; uploading", number, steps, loss)
        writer.write(frame(nn.utils.parameters_to_vector(model.parameters()).detach().numpy()))
        await writer.drain()
        merged = await receive(reader)
        nn.utils.vector_to_parameters(torch.from_numpy(merged).float(), model.parameters())


def main():
    signal.alarm(300)
    torch.set_num_threads(1)
    ours, theirs = mp.Pipe()
    mp.get_context("fork").Process(target=aggregate, args=(theirs,), daemon=True).start()
    conv = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()]
    asyncio.run(site(ours.recv(), nn.Sequential(*conv, nn.Conv2d(16, 1, 1))))


if __name__ == "__main__":
    main()
