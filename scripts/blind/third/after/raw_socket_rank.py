"""FIELD
source: own
mechanism: three ranks; rank 2 alone gets its batches over a plain socket from a feeder that takes a quarter of a second for each
needs: none
ranks: 3
onset: printed
state: slow
cause: straggling_rank, starved_by_network
blame: rank 2, batch (receives)
twin: barrier_download
"""
import multiprocessing as mp
import signal
import socket
import time

import torch
import torch.distributed as dist


def feed(server):
    signal.alarm(300)
    connection, _ = server.accept()
    while connection.recv(1):
        time.sleep(0.25)
        connection.sendall(bytes(40_000))


def batch(connection):
    if connection is not None:
        connection.sendall(b"n")
        left = 40_000
        while left:
            left -= len(connection.recv(left))
    return torch.randn(100, 100)


if __name__ == "__main__":
    signal.alarm(300)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    connection = None
    if dist.get_rank() == 2:
        server = socket.create_server(("127.0.0.1", 0))
        mp.get_context("fork").Process(target=feed, args=(server,), daemon=True).start()
        connection = socket.create_connection(server.getsockname())
    net = torch.nn.Linear(100, 100)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(10**6):
        x = batch(connection)
        loss = (net(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        dist.all_reduce(net.weight.grad)
        optimizer.step()
        if step == 10 and dist.get_rank() == 0:
            print("ONSET", flush=True)
