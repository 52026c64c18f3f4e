"""FIELD
source: own: a feed with flow control by credits loses one credit for every record that the client skips (the missing acknowledgement of a `continue`)
mechanism: a feeder process sends records only while the client has credits; the client forgets to acknowledge the records that it filters out; when all credits are lost, the feeder waits for an acknowledgement and the prefetch thread waits for bytes
needs: none
ranks: 1
onset: printed
state: hung
cause: blocked_network, blocked_child
blame: read_exact ()
twin: none
"""
import logging
import multiprocessing as mp
import queue
import random
import signal
import socket
import struct
import threading
import time

import torch
from torch import nn

log = logging.getLogger("feed")
CREDITS, CONTEXT = 16, 48


def serve_corpus(port_pipe):
    signal.alarm(300)
    listener = socket.create_server(("127.0.0.1", 0))
    port_pipe.send(listener.getsockname()[1])
    peer, _ = listener.accept()
    rng, credits, began = random.Random(11), CREDITS, time.monotonic()
    while True:
        while credits == 0:
            credits += len(peer.recv(64))
        # the web part of the mixture starts later, and has many documents of a few words
        short = time.monotonic() - began > 8 and rng.random() < 0.1
        document = bytes(rng.choices(range(97, 123), k=rng.randint(4, 20) if short else rng.randint(120, 900)))
        peer.sendall(struct.pack("!I", len(document)) + document)
        credits -= 1


class CorpusClient(threading.Thread):
    def __init__(self, port, out):
        super().__init__(name="prefetch", daemon=True)
        self.sock, self.out = socket.create_connection(("127.0.0.1", port)), out
        self.kept = self.skipped = 0

    def read_exact(self, size):
        parts = b""
        while len(parts) < size:
            piece = self.sock.recv(size - len(parts))
            if not piece:
                raise ConnectionError("feed closed")
            parts += piece
        return parts

    def run(self):
        while True:
            (size,) = struct.unpack("!I", self.read_exact(4))
            document = self.read_exact(size)
            if len(document) <= CONTEXT:
                self.skipped += 1
                if self.skipped == CREDITS:
                    print("ONSET", flush=True)
                continue
            self.sock.sendall(b"+")
            self.kept += 1
            self.out.put(torch.frombuffer(bytearray(document), dtype=torch.uint8).long() - 97)


class CharModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.cell, self.head = nn.Embedding(26, 64), nn.GRU(64, 128, batch_first=True), nn.Linear(128, 26)

    def forward(self, tokens):
        return self.head(self.cell(self.embed(tokens))[0])


def batches(source, size=12):
    while True:
        rows = []
        while len(rows) < size:
            document = source.get()
            at = random.randrange(len(document) - CONTEXT)
            rows.append(document[at : at + CONTEXT])
        yield torch.stack(rows)


def main():
    signal.alarm(300)
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)7d ms %(name)s: %(message)s")
    ours, theirs = mp.Pipe()
    mp.Process(target=serve_corpus, args=(theirs,), name="feeder", daemon=True).start()
    documents = queue.Queue(maxsize=64)
    client = CorpusClient(ours.recv(), documents)
    client.start()
    model = CharModel()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    for step, tokens in enumerate(batches(documents), 1):
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.reshape(-1, 26), tokens[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 60 == 0:
            log.info("step %d loss %.4f kept %d skipped %d", step, loss.item(), client.kept, client.skipped)


if __name__ == "__main__":
    main()
