"""FIELD
source: TL-System/plato#176, the server of a federated session waits for ever for a client that has failed, rebuilt with asyncio streams
mechanism: in one round a client dies of a MemoryError while it trains; the server sees the end of its connection and takes it off the list, but the round still waits
    for as many updates as it had asked for, on an asyncio event; the other clients wait for the next weights
needs: none
ranks: 1 (it starts its own 3 clients)
onset: printed
state: hung
cause: dead_worker,blocked_network,unknown
blame: none
twin: none
"""
import asyncio
import io
import multiprocessing
import signal
import socket
import struct
import time

import torch
from torch import nn

FEATURES = 20
FAIL_AFTER = 20.0


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 64), nn.Tanh(), nn.Linear(64, 2))


def pack(obj):
    buffer = io.BytesIO()
    torch.save(obj, buffer)
    return struct.pack("!I", buffer.tell()) + buffer.getvalue()


def cohort(site, n, gen):
    x = torch.randn(n, FEATURES, generator=gen) + 0.1 * site
    return x, (x[:, :3].sum(1) > 0.3 * site).long()


def client(site, port):
    signal.alarm(310)
    torch.set_num_threads(1)
    gen = torch.Generator().manual_seed(site)
    sock = socket.create_connection(("127.0.0.1", port))
    stream = sock.makefile("rwb")
    stream.write(struct.pack("!B", site))
    stream.flush()
    net = model()
    begin = time.monotonic()
    while head := stream.read(4):
        weights = torch.load(io.BytesIO(stream.read(struct.unpack("!I", head)[0])))
        net.load_state_dict(weights)
        opt = torch.optim.SGD(net.parameters(), lr=0.05)
        for _ in range(30):
            x, y = cohort(site, 64, gen)
            loss = nn.functional.cross_entropy(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            time.sleep(0.01)
        if site == 2 and time.monotonic() - begin > FAIL_AFTER:
            print("ONSET", flush=True)
            raise MemoryError("site 2: cannot allocate the validation volume")
        stream.write(pack(net.state_dict()))
        stream.flush()


class Server:
    def __init__(self, sites):
        self.sites = sites
        self.net = model()
        self.connected = {}
        self.updates = {}
        self.arrived = asyncio.Event()
        self.everyone = asyncio.Event()
        self.gen = torch.Generator().manual_seed(99)

    async def serve(self, reader, writer):
        site = (await reader.readexactly(1))[0]
        self.connected[site] = writer
        if len(self.connected) == self.sites:
            self.everyone.set()
        try:
            while True:
                size = struct.unpack("!I", await reader.readexactly(4))[0]
                self.updates[site] = torch.load(io.BytesIO(await reader.readexactly(size)))
                self.arrived.set()
        except (asyncio.IncompleteReadError, ConnectionResetError):
            print(f"site {site} disconnected", flush=True)
            del self.connected[site]

    async def round(self, number):
        self.updates.clear()
        message = pack(self.net.state_dict())
        asked = list(self.connected.values())
        for writer in asked:
            writer.write(message)
            await writer.drain()
        while len(self.updates) < len(asked):
            self.arrived.clear()
            await self.arrived.wait()
        merged = {k: sum(u[k] for u in self.updates.values()) / len(self.updates) for k in self.net.state_dict()}
        self.net.load_state_dict(merged)
        # a few steps on the public cohort, as a proximal correction
        opt = torch.optim.SGD(self.net.parameters(), lr=0.01)
        for _ in range(40):
            x, y = cohort(0, 256, self.gen)
            loss = nn.functional.cross_entropy(self.net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        if number % 5 == 0:
            print(f"round {number} public loss {loss.item():.4f}", flush=True)


async def main(listening, sites):
    server = Server(sites)
    await asyncio.start_server(server.serve, sock=listening)
    await server.everyone.wait()
    for number in range(10**6):
        await server.round(number)


if __name__ == "__main__":
    signal.alarm(300)
    torch.set_num_threads(1)
    listening = socket.create_server(("127.0.0.1", 0))
    clients = [
        multiprocessing.Process(target=client, args=(i, listening.getsockname()[1]), daemon=True) for i in (1, 2, 3)
    ]
    for c in clients:
        c.start()
    asyncio.run(main(listening, len(clients)))
