"""A streaming data set: workers fetch shards over HTTP from a slow store, and the model waits for them."""

import http.server
import socketserver
import time
import urllib.request

import stage
import surroundings
import torch
from torch.utils.data import DataLoader, Dataset

SLOWER = {"loud": 5, "quiet": 2, "masked": 1.45}  # a batch takes so many steps to arrive
WORKERS = 2
BODY = bytes(range(256)) * 256


class Store(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        pause = float(self.path.rsplit("=", 1)[1])
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        for start in range(0, len(BODY), 16384):
            time.sleep(pause / 4)
            self.wfile.write(BODY[start : start + 16384])

    def log_message(self, *_):
        pass


class Remote(Dataset):
    def __init__(self, url, calm, steps, pace):
        self.url, self.calm, self.steps, self.pace = url, calm, steps, pace

    def __len__(self):
        return 10_000_000

    def __getitem__(self, index):
        pause = self.steps * self.pace.seconds if index >= self.calm else 0
        return decode(self.download(f"{self.url}/shard-{index}?pause={pause}"))

    def download(self, address):
        with urllib.request.urlopen(address, timeout=30) as answer:
            return answer.read()


def decode(raw):
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(64, 1024).float() / 255


if __name__ == "__main__":
    args = stage.arguments(__doc__)
    store = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Store)
    stage.outsider(store.serve_forever)
    url = f"http://127.0.0.1:{store.server_address[1]}"
    store.socket.close()
    surroundings.innocent_activity(args.strength)
    torch.set_num_threads(1)
    encoder = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 64))
    optimizer = torch.optim.SGD(encoder.parameters(), lr=1e-4)

    def train_step(batch):
        optimizer.zero_grad()
        encoder(batch).square().mean().backward()
        optimizer.step()

    pace = surroundings.Pace()
    remote = Remote(url, args.steps, WORKERS * SLOWER[args.strength], pace)
    stream = DataLoader(remote, batch_size=None, num_workers=WORKERS)
    for i, shard in enumerate(stream):
        if i == args.steps:
            stage.onset()
        with pace:
            train_step(shard)
