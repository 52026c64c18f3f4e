"""FIELD
source: https://github.com/bearpaw/pytorch-pose/issues/28
mechanism: two workers decode frames from a remote store over HTTP, each request takes a quarter of a second there, and the training thread mostly waits for the next batch
needs: none
ranks: 1
onset: printed
state: slow
cause: starved_by_network
blame: fetch_frame (waits for the store), __getitem__ (calls it)
twin: none
"""
import http.client
import http.server
import multiprocessing as mp
import signal
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Store(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        time.sleep(0.25)
        body = bytes(16 * 16 * 3)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


def serve(port):
    signal.alarm(300)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Store)
    port.value = server.server_port
    server.serve_forever()


class RemoteFrames(Dataset):
    def __init__(self, port):
        self.port, self.connection = port, None

    def __len__(self):
        return 10**6

    def fetch_frame(self, i):
        if self.connection is None:
            self.connection = http.client.HTTPConnection("127.0.0.1", self.port)
        self.connection.request("GET", f"/frame/{i}")
        return self.connection.getresponse().read()

    def __getitem__(self, i):
        frame = torch.frombuffer(bytearray(self.fetch_frame(i)), dtype=torch.uint8).float().view(3, 16, 16)
        return frame, torch.rand(16, 2)


if __name__ == "__main__":
    signal.alarm(300)
    torch.set_num_threads(1)
    port = mp.Value("i", 0)
    mp.Process(target=serve, args=(port,), daemon=True).start()
    while not port.value:
        time.sleep(0.05)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(3136, 32))
    optimizer = torch.optim.RMSprop(net.parameters(), lr=2.5e-4)
    for step, (frames, joints) in enumerate(DataLoader(RemoteFrames(port.value), batch_size=4, num_workers=2)):
        loss = (net(frames).view(-1, 16, 2) - joints).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 5:
            print("ONSET", flush=True)
        print(f"({step}) Loss: {loss.item():.4f}", flush=True)
