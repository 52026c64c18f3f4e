"""A decoder on the GPU is fed with shards from an HTTP store that answers slowly."""

import http.server
import socketserver
import time
import urllib.request

import accelerator
import decoder
import stage
import surroundings
import torch
from torch.utils.data import DataLoader, Dataset

SLOWER = {"loud": 10, "quiet": 3, "masked": 1.6}  # a batch takes so many steps to arrive
WORKERS, BATCH, LENGTH = 2, 8, 512
BODY = bytes(range(256)) * (BATCH * (LENGTH + 1) * 2 // 256 + 1)


class Store(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        pause = float(self.path.rsplit("=", 1)[1])
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        for quarter in range(4):
            time.sleep(pause / 4)
            self.wfile.write(BODY[quarter * len(BODY) // 4 : (quarter + 1) * len(BODY) // 4])

    def log_message(self, *_):
        pass


class Shards(Dataset):
    def __init__(self, calm, pause):
        self.calm, self.pause = calm, pause

    def __len__(self):
        return 10**9

    def __getitem__(self, index):
        raw = self.download(f"{url}/shard-{index}?pause={self.pause if index >= self.calm else 0}")
        numbers = torch.frombuffer(bytearray(raw), dtype=torch.int16)[: BATCH * (LENGTH + 1)]
        return numbers.long().remainder(decoder.VOCABULARY).view(BATCH, LENGTH + 1)

    def download(self, address):
        with urllib.request.urlopen(address, timeout=30) as answer:
            return answer.read()


args = stage.arguments(__doc__)
store = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Store)
stage.outsider(store.serve_forever)
url = f"http://127.0.0.1:{store.server_address[1]}"
store.socket.close()
card = accelerator.device()
surroundings.innocent_activity(args.strength)
model, optimizer = decoder.build(card, 1024, 8, LENGTH)
random_batch = decoder.random_tokens(card, BATCH, LENGTH)
one_step = accelerator.typical_seconds(lambda: decoder.train_step(model, optimizer, random_batch))
shards = Shards(args.steps, one_step * SLOWER[args.strength] * WORKERS)
for step, tokens in enumerate(DataLoader(shards, batch_size=None, num_workers=WORKERS, pin_memory=True)):
    if step == args.steps:
        stage.onset()
    loss = decoder.train_step(model, optimizer, tokens.to(card, non_blocking=True))
    if step % 20 == 0:
        print(step, loss.item(), flush=True)
