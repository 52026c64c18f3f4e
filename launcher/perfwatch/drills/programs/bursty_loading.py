"""Four workers start their batches together and end them together: a long wait, four batches at once, again."""

import http.server
import time
from urllib.request import urlopen

import stage
import surroundings
import torch
from torch.utils.data import DataLoader, Dataset

SLOWER = {"loud": 5, "quiet": 2, "masked": 1.45}  # four pictures take so many times four steps


class Gallery(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        time.sleep(float(self.path[1:]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(bytes(4096))

    def log_message(self, *_):
        pass


class Pictures(Dataset):
    def __init__(self, port, calm, steps, pace):
        self.port, self.calm, self.steps, self.pace = port, calm, steps, pace

    def __len__(self):
        return 10_000_000

    def __getitem__(self, index):
        latency = self.steps * self.pace.seconds if index >= self.calm else 0.0
        return torch.tensor(list(self.fetch(latency)), dtype=torch.float32)

    def fetch(self, latency):
        with urlopen(f"http://127.0.0.1:{self.port}/{latency}", timeout=30) as picture:
            return picture.read()


if __name__ == "__main__":
    args = stage.arguments(__doc__)
    gallery = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Gallery)
    stage.outsider(gallery.serve_forever)
    gallery.socket.close()
    surroundings.innocent_activity(args.strength)
    torch.set_num_threads(1)
    projection = torch.nn.Linear(4096, 1024)
    sgd = torch.optim.SGD(projection.parameters(), lr=1e-6)

    def learn(picture):
        sgd.zero_grad()
        projection(picture.expand(256, -1)).pow(2).mean().backward()
        sgd.step()

    pace = surroundings.Pace()
    pictures = Pictures(gallery.server_address[1], args.steps, 4 * SLOWER[args.strength], pace)
    for step, picture in enumerate(DataLoader(pictures, batch_size=None, num_workers=4, prefetch_factor=1)):
        if step == args.steps:
            stage.onset()
        with pace:
            learn(picture)
