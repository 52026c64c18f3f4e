"""The loader's workers read from a store that answers at once, and rest between two requests so as not to load it."""

import http.client
import os
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import stage
import surroundings
import torch
from torch.utils.data import DataLoader, IterableDataset

REST = 8  # of each worker after a tile, in steps: the model waits for nearly every batch
ENOUGH = 200  # tiles that were read ahead of time, before the store is asked


class Store(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(os.urandom(4096))

    def log_message(self, *words):
        pass


class Tiles(IterableDataset):
    def __iter__(self):
        for _ in range(ENOUGH):
            yield torch.rand(4096)
        stage.onset()
        number = 0
        while True:
            link = http.client.HTTPConnection(*address, timeout=20)
            link.request("GET", f"/tile-{number}")
            raw = link.getresponse().read()
            yield torch.frombuffer(bytearray(raw), dtype=torch.uint8).float() / 255
            number += 1
            time.sleep(pause)


args = stage.arguments(__doc__)
server = ThreadingHTTPServer(("127.0.0.1", 0), Store)
address = server.server_address
stage.outsider(server.serve_forever)
surroundings.innocent_activity(args.strength)
torch.set_num_threads(1)
segmenter = torch.nn.Sequential(torch.nn.Linear(4096, 256), torch.nn.GELU(), torch.nn.Linear(256, 4096))
adamw = torch.optim.AdamW(segmenter.parameters())


def learn(tiles):
    adamw.zero_grad()
    segmenter(tiles).square().mean().backward()
    adamw.step()


one_step = surroundings.typical_seconds(lambda: learn(torch.rand(1, 4096)))
pause = REST * one_step
for tiles in DataLoader(Tiles(), batch_size=1, num_workers=2):
    learn(tiles)
