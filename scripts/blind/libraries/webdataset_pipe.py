"""FIELD
source: webdataset/webdataset#308 and webdataset/webdataset#112 (a curl that a shard is piped through gets no more bytes and is never closed; the training waits)
mechanism: shards come through "pipe:" commands, each a child that downloads over HTTP; after some shards the server sends half of one and
    then nothing more, so the child waits in recv, the worker in a read of the child's pipe and the training thread for a batch
needs: none
ranks: 1
onset: printed
state: hung
cause: blocked_network, blocked_pipe, blocked_child, stuck_worker
blame: none
twin: webdataset_shards
"""

import http.server
import os
import signal
import sys
import tempfile
import time

signal.alarm(300)

import torch
import webdataset

torch.set_num_threads(1)
folder = tempfile.mkdtemp()
for shard in range(4):
    with webdataset.TarWriter(f"{folder}/train-{shard:06d}.tar") as tar:
        for number in range(200):
            tar.write({"__key__": f"{shard}-{number:05d}", "x.pth": torch.randn(3, 16, 16), "cls": number % 10})


class Bucket(http.server.BaseHTTPRequestHandler):
    served = 0

    def do_GET(self):
        Bucket.served += 1
        with open(folder + self.path, "rb") as file:
            body = file.read()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if Bucket.served < 8:
            self.wfile.write(body)
            return
        self.wfile.write(body[: len(body) // 2])
        self.wfile.flush()
        print("ONSET", flush=True)
        time.sleep(1_000)

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Bucket)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.alarm(300)
        server.serve_forever()
    os._exit(0)
os.wait()
fetch = (
    "import shutil,sys,urllib.request as r;"
    f"shutil.copyfileobj(r.urlopen('http://127.0.0.1:{server.server_port}/'+sys.argv[1]),sys.stdout.buffer)"
)
urls = [f'pipe:{sys.executable} -c "{fetch}" train-{shard:06d}.tar' for shard in range(4)]
data = webdataset.WebDataset(urls, resampled=True, shardshuffle=False).decode().to_tuple("x.pth", "cls").batched(20)
loader = webdataset.WebLoader(data, batch_size=None, num_workers=1)
net = torch.nn.Sequential(
    torch.nn.Conv2d(3, 48, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(48, 96, 3, padding=1), torch.nn.ReLU(),
    torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten(), torch.nn.Linear(384, 10),
)
optimizer = torch.optim.SGD(net.parameters(), 1e-2)
for step, (images, labels) in enumerate(loader):
    loss = torch.nn.functional.cross_entropy(net(images), torch.as_tensor(labels))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print("step", step, loss.item(), flush=True)
