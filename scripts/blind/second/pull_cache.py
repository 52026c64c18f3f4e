"""FIELD
source: own
mechanism: rank 0 downloads the teacher weights at about 300 KB/s from an HTTP server that sends steadily, rank 1 polls for the finished file; it ends after some minutes
needs: cpu
ranks: 2
onset: printed
state: busy
cause: downloading, waiting_on_work
blame: none
twin: none
"""
import datetime
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn

torch.set_num_threads(1)

MIRROR = r"""
import http.server, os, time
class Files(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        size = 96 << 20
        self.send_response(200)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        for _ in range(size >> 15):
            self.wfile.write(os.urandom(1 << 15))
            time.sleep(0.1)
    def log_message(self, *args):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Files)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


def pull(url, path):
    part = path.with_suffix(".part")
    with urllib.request.urlopen(url, timeout=60) as reply, open(part, "wb") as sink:
        total, done = int(reply.headers["Content-Length"]), 0
        while chunk := reply.read(1 << 16):
            sink.write(chunk)
            done += len(chunk)
            if done % (4 << 20) < (1 << 16):
                print(f"teacher.bin {done >> 20}/{total >> 20} MiB", flush=True)
    part.rename(path)


def teacher_file(root, url):
    path = Path(root) / "teacher.bin"
    if dist.get_rank() == 0:
        pull(url, path)
    while not path.exists():
        time.sleep(2)
    return path


def train(student, opt, teacher, seconds):
    started, step = torch.tensor([time.time()], dtype=torch.float64), 0
    dist.broadcast(started, 0)
    while True:
        x = torch.randn(128, 64)
        goal = x.sin() if teacher is None else x @ teacher
        loss = nn.functional.mse_loss(student(x), goal)
        opt.zero_grad()
        loss.backward()
        flat = torch.cat([p.grad.flatten() for p in student.parameters()] + [torch.tensor([time.time() - started.item()])])
        dist.all_reduce(flat)
        for p, part in zip(student.parameters(), flat[:-1].split([p.numel() for p in student.parameters()])):
            p.grad.copy_(part.view_as(p) / 2)
        opt.step()
        step += 1
        if dist.get_rank() == 0 and step % 200 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if flat[-1] / 2 > seconds:
            return


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=14))
    rank = dist.get_rank()
    where = [None, None]
    mirror = None
    if rank == 0:
        mirror = subprocess.Popen([sys.executable, "-c", MIRROR], stdout=subprocess.PIPE, text=True)
        where = [tempfile.mkdtemp(prefix="teacher_"), f"http://127.0.0.1:{mirror.stdout.readline().strip()}/teacher.bin"]
    dist.broadcast_object_list(where, src=0)
    torch.manual_seed(0)
    student = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    opt = torch.optim.Adam(student.parameters(), lr=1e-3)
    train(student, opt, None, 9)
    if rank == 0:
        print("ONSET", flush=True)
    path = teacher_file(*where)
    raw = torch.frombuffer(bytearray(path.read_bytes()[:64 * 64]), dtype=torch.uint8)
    train(student, opt, raw.view(64, 64).float() / 1024, 20)
    if mirror is not None:
        mirror.kill()
        os.unlink(path)


if __name__ == "__main__":
    main()
