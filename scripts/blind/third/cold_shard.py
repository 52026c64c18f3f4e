"""FIELD
source: own
mechanism: two ranks read their shards through HTTP; the shard server of rank 1 answers each request after 300 ms, the one of rank 0 at once
needs: none
ranks: 2
onset: printed
state: slow
cause: straggling_rank, starved_by_network
blame: rank 1, next_chunk (waits for the server)
twin: none
"""
import datetime
import http.client
import http.server
import os
import signal
import subprocess
import sys

import torch
import torch.distributed as dist

SERVER = """
import http.server, signal, sys, time
signal.alarm(300)
delay = float(sys.argv[1])
class Shard(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        time.sleep(delay)
        self.send_response(200)
        self.send_header('Content-Length', '32768')
        self.end_headers()
        self.wfile.write(bytes(32768))
    def log_message(self, *a): pass
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Shard)
print(server.server_port, flush=True)
server.serve_forever()
"""


class Shard:
    def __init__(self, delay):
        self.process = subprocess.Popen([sys.executable, "-c", SERVER, str(delay)], stdout=subprocess.PIPE, text=True)
        self.connection = http.client.HTTPConnection("127.0.0.1", int(self.process.stdout.readline()))

    def next_chunk(self, number):
        self.connection.request("GET", f"/chunk/{number}")
        body = self.connection.getresponse().read()
        return torch.frombuffer(bytearray(body), dtype=torch.float32).view(64, 128) + torch.randn(64, 128)


signal.alarm(300)
torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=10))
rank = dist.get_rank()
shard = Shard(0.3 if rank == 1 else 0.0)
net = torch.nn.Linear(128, 128)
optimizer = torch.optim.Adam(net.parameters())
for step in range(10**6):
    chunk = shard.next_chunk(step)
    loss = (net(chunk) - chunk).square().mean()
    optimizer.zero_grad()
    loss.backward()
    for p in net.parameters():
        dist.all_reduce(p.grad)
    optimizer.step()
    if step == 10 and rank == 0:
        print("ONSET", flush=True)
    if step % 10 == 0 and rank == 0:
        print("step", step, loss.item(), flush=True)
