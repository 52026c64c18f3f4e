"""FIELD
source: https://github.com/Lightning-AI/pytorch-lightning/issues/379
mechanism: rank 0 alone decides to stop early and goes on to serve its model over HTTP; the two others wait for it in the next all_reduce
needs: none
ranks: 3
onset: printed
state: hung
cause: stalled_collective
blame: rank 0, serve (accepts requests), main
twin: none
"""
import datetime
import http.server
import signal

import torch
import torch.distributed as dist

signal.alarm(300)
torch.set_num_threads(1)


class ThresholdStopping:
    def __init__(self, limit):
        self.limit = limit

    def should_stop(self, rank, step):
        return rank == 0 and step >= self.limit


class Predict(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()


def serve():
    http.server.HTTPServer(("127.0.0.1", 0), Predict).serve_forever()


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=10))
    rank = dist.get_rank()
    stopping = ThresholdStopping(250)
    net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 10))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    step = 0
    while not stopping.should_stop(rank, step):
        x, y = torch.randn(128, 64), torch.randint(0, 10, (128,))
        torch.nn.functional.cross_entropy(net(x), y).backward()
        for parameter in net.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % 25 == 0:
            print(f"rank {rank} step {step}", flush=True)
    print("ONSET", flush=True)
    serve()


main()
