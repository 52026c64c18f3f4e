"""FIELD
source: own
mechanism: training runs in a thread; the main thread sits in a tornado loop that serves a status page, as a notebook or a small service would
needs: none
ranks: 1
onset: printed
state: healthy
cause: cpu_training, balanced
blame: none
twin: threshold_stop
"""
import asyncio
import json
import signal
import threading

import torch
import tornado.web

signal.alarm(300)
torch.set_num_threads(1)
STATE = {"step": 0, "loss": None}


class Status(tornado.web.RequestHandler):
    def get(self):
        self.write(json.dumps(STATE))


def train():
    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 32, 5), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Conv2d(32, 64, 5), torch.nn.ReLU(),
        torch.nn.Flatten(), torch.nn.Linear(64 * 64, 10),
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    while True:
        loss = torch.nn.functional.cross_entropy(net(torch.rand(64, 1, 28, 28)), torch.randint(0, 10, (64,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        STATE["step"] += 1
        STATE["loss"] = loss.item()
        if STATE["step"] == 40:
            print("ONSET", flush=True)
        if STATE["step"] % 20 == 0:
            print(STATE, flush=True)


async def serve():
    application = tornado.web.Application([("/", Status)])
    application.listen(0, "127.0.0.1")
    threading.Thread(target=train, daemon=True, name="fit").start()
    await asyncio.Event().wait()


asyncio.run(serve())
