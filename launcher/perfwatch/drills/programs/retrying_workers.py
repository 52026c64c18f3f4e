"""The loader's workers read from a store that sends most requests away: each backs off, longer every time, and polls."""

import http.client
import os
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import stage
import surroundings
import torch
from torch.utils.data import DataLoader, Dataset

REFUSALS = {"loud": 3, "quiet": 2, "masked": 1}
LOST = {"loud": 8, "quiet": 3, "masked": 2}  # the waits for one object, in steps: two workers share them
ENOUGH = 200  # objects before the store is tired
asked: Counter[int] = Counter()


class Store(BaseHTTPRequestHandler):
    def do_GET(self):
        number = int(self.path.rsplit("-", 1)[1])
        asked[number] += 1
        tired = number >= ENOUGH and asked[number] <= refusals
        self.send_response(503 if tired else 200)
        self.end_headers()
        self.wfile.write(b"" if tired else os.urandom(4096))

    def log_message(self, *words):
        pass


class Tiles(Dataset):
    def __len__(self):
        return 1 << 30

    def __getitem__(self, number):
        raw = self.download(number)
        return torch.frombuffer(bytearray(raw), dtype=torch.uint8).float() / 255

    def download(self, number):
        wait = pause
        while True:
            link = http.client.HTTPConnection(*address, timeout=20)
            link.request("GET", f"/tile-{number}")
            reply = link.getresponse()
            if reply.status == 200:
                return reply.read()
            time.sleep(wait)
            wait *= 2


args = stage.arguments(__doc__)
refusals = REFUSALS[args.strength]
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
pause = LOST[args.strength] * 2 * one_step / (2**refusals - 1)
for number, tiles in enumerate(DataLoader(Tiles(), batch_size=1, num_workers=2)):
    if number == ENOUGH:
        stage.onset()
    learn(tiles)
