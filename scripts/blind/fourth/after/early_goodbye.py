"""FIELD
source: after wandb/wandb#4929 and #5601 (finish() is stuck although all data is there)
mechanism: rank 0 decides alone that the run is over and waits in finish() for its uploader thread, which waits for a silent server; rank 1 is in the next exchange
needs: none
ranks: 2
onset: printed
state: hung
cause: stalled_collective, blocked_network, hung_at_exit, mismatched_collective
blame: rank 0, finish (early_goodbye.py), upload (early_goodbye.py)
twin: none
"""

import datetime
import signal
import socket
import threading

import torch
import torch.distributed as dist

signal.alarm(300)
torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=datetime.timedelta(hours=1))
rank = dist.get_rank()
net = torch.nn.Linear(64, 64)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
silent = socket.create_server(("127.0.0.1", 0))


def upload():
    with socket.create_connection(silent.getsockname()) as connection:
        connection.sendall(b"POST /files HTTP/1.1\r\n\r\n")
        connection.recv(1)


def finish():
    thread = threading.Thread(target=upload, name="uploader")
    thread.start()
    thread.join()


best, patience = float("inf"), 0
for step in range(10**6):
    x = torch.randn(64, 64)
    loss = (net(x) - x).square().mean()
    opt.zero_grad()
    loss.backward()
    for p in net.parameters():
        dist.all_reduce(p.grad)
    opt.step()
    if step % 200 == 0:
        print("rank", rank, "step", step, loss.item(), flush=True)
    if rank == 0 and step == 3000:
        print("ONSET", flush=True)
        finish()
        break
