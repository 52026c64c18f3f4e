"""FIELD
source: own
mechanism: rank 1 fetches a teacher's weights for two minutes and a half, once, while rank 0 waits in the barrier
needs: none
ranks: 2
onset: printed
state: busy
cause: downloading, waiting_on_work
blame: none
twin: remote_labels
"""
import signal
import subprocess
import sys
import urllib.request

import torch
import torch.distributed as dist

MIRROR = """
import http.server, signal, time
signal.alarm(300)
class Mirror(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        for _ in range(1500):
            self.wfile.write(bytes(20_000))
            time.sleep(0.1)
    def log_message(self, *a): pass
server = http.server.HTTPServer(('127.0.0.1', 0), Mirror)
print(server.server_port, flush=True)
server.serve_forever()
"""
signal.alarm(300)
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
net = torch.nn.Linear(200, 200)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(10**6):
    if step == 300 and rank == 1:
        mirror = subprocess.Popen([sys.executable, "-c", MIRROR], stdout=subprocess.PIPE, text=True)
        port = int(mirror.stdout.readline())
        print("ONSET", flush=True)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/teacher") as answer:
            while answer.read(65536):
                pass
    if step == 300:
        dist.barrier()
    x = torch.randn(200, 200)
    loss = (net(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    dist.all_reduce(net.weight.grad)
    optimizer.step()
