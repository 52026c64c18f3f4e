"""FIELD
source: own: `torch.save | aws s3 cp -` in a rank-0 hook (the uploader stops reading stdin when its connection stalls)
mechanism: rank 0 streams a snapshot into the stdin of an uploader child; the server stops reading the upload, the child blocks in send, the pipe fills, rank 0 blocks in write and rank 1 in the barrier
needs: none
ranks: 1 (it starts its own 2)
onset: printed
state: hung
cause: blocked_child,blocked_pipe,blocked_network,stalled_collective
blame: none
twin: none
"""
import io
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

UPLOADER = """
import signal, socket, sys
signal.alarm(300)
conn = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
sent = 0
while part := sys.stdin.buffer.read(65536):
    conn.sendall(part)
    sent += len(part)
conn.close()
print(f"uploaded {sent} bytes to {sys.argv[2]}", file=sys.stderr)
"""


class ObjectStore(threading.Thread):
    """The far end: takes the first two objects, then its disk is full and it stops reading."""

    def __init__(self):
        super().__init__(daemon=True, name="objstore")
        self.sock = socket.create_server(("127.0.0.1", 0))
        self.port = self.sock.getsockname()[1]
        self.open = []

    def run(self):
        for n in range(100):
            c, _ = self.sock.accept()
            if n >= 2:
                self.open.append(c)
                c.recv(1 << 20)
                continue
            while c.recv(1 << 20):
                pass
            c.close()


class SnapshotHook:
    def __init__(self, every, port):
        self.every, self.port, self.count = every, port, 0

    def __call__(self, step, model, opt):
        if step == 0 or step % self.every:
            return
        if dist.get_rank() == 0:
            self.stream(f"s3://exp-17/step{step:06d}.pt", {"model": model.module.state_dict(),
                                                            "opt": opt.state_dict(), "step": step})
        dist.barrier()

    def stream(self, url, payload):
        buf = io.BytesIO()
        torch.save(payload, buf)
        self.count += 1
        if self.count == 3:
            print("ONSET", flush=True)
        up = subprocess.Popen([sys.executable, "-c", UPLOADER, str(self.port), url], stdin=subprocess.PIPE)
        up.stdin.write(buf.getbuffer())
        up.stdin.close()
        if up.wait():
            raise RuntimeError(f"upload of {url} failed")


def train():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(256, 768), nn.SiLU(), nn.Linear(768, 768), nn.SiLU(),
                              nn.Linear(768, 256)))
    opt = torch.optim.AdamW(model.parameters(), 3e-4)
    hook = SnapshotHook(70, int(os.environ["STORE"]))
    for step in range(100000):
        x = torch.randn(16, 256)
        time.sleep(0.02)
        loss = nn.functional.mse_loss(model(x), x.flip(-1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 25 == 0:
            print(f"step {step:5d}  loss {loss.item():.4f}", flush=True)
        hook(step, model, opt)


if __name__ == "__main__":
    signal.alarm(300)
    torch.set_num_threads(1)
    if "LOCAL_RANK" in os.environ:
        train()
    else:
        store = ObjectStore()
        store.start()
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        env = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE="2", STORE=str(store.port))
        kids = [subprocess.Popen([sys.executable, __file__], env={**env, "RANK": str(r), "LOCAL_RANK": str(r)})
                for r in (0, 1)]
        sys.exit(max(k.wait() for k in kids))
