"""Streaming data set: the object store sends half of a shard and then nothing; the worker's ``recv`` has no timeout."""

import itertools
import socket
import threading
import time

import stage
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

SHARD = 4 * 8 * 256


def object_store(listener, good):
    def stream(peer, number):
        for sent in itertools.count():
            if sent == good and (cfg.strength == "loud" or number == 0):
                peer.sendall(bytes(SHARD // 2))
                threading.Event().wait()
            peer.sendall(bytes(SHARD))

    for number in itertools.count():
        threading.Thread(target=stream, args=(listener.accept()[0], number), daemon=True).start()


class ObjectStoreStream(IterableDataset):
    def __init__(self, port):
        self.port = port

    def fetch(self, conn):
        shard = bytearray()
        while len(shard) < SHARD:
            shard += conn.recv(SHARD - len(shard))
        return shard

    def __iter__(self):
        with socket.create_connection(("127.0.0.1", self.port)) as conn:
            for n in itertools.count():
                if n == cfg.steps:
                    stage.onset(worker=get_worker_info().id)
                yield torch.frombuffer(self.fetch(conn), dtype=torch.float32).view(8, 256)


def queue_depth_logger():
    while True:
        print("queue depth: 2", flush=True)
        time.sleep(0.4)


cfg = stage.arguments()
torch.set_num_threads(1)
store = socket.create_server(("127.0.0.1", 0))
stage.outsider(lambda: object_store(store, cfg.steps))
stream = ObjectStoreStream(store.getsockname()[1])
store.close()
if cfg.strength == "masked":
    threading.Thread(target=queue_depth_logger, daemon=True).start()
tower = torch.nn.TransformerEncoderLayer(256, 4)
sgd = torch.optim.SGD(tower.parameters(), lr=0.01)
for shard in DataLoader(stream, batch_size=None, num_workers=2):
    sgd.zero_grad()
    tower(shard).mean().backward()
    sgd.step()
