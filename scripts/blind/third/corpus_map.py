"""FIELD
source: own
mechanism: before training a pool of two processes normalises and hashes documents in chunks of several seconds each; the main process waits in imap
needs: none
ranks: 1
onset: printed
state: busy
cause: waiting_on_work, computing_on_host, starting
blame: none
twin: clash_report
"""
import hashlib
import multiprocessing as mp
import random
import re
import signal
import unicodedata

import torch

PATTERN = re.compile(r"[^\w\s]+")


def start(*_):
    signal.alarm(300)


def process_chunk(number):
    rng = random.Random(number)
    hashes = []
    for _ in range(1500):
        text = " ".join("".join(rng.choices("abcdéföü-,. ", k=7)) for _ in range(200))
        text = PATTERN.sub(" ", unicodedata.normalize("NFKD", text).casefold())
        shingles = {text[i : i + 5] for i in range(0, len(text) - 5, 2)}
        hashes.append(min(hashlib.blake2b(s.encode(), digest_size=8).digest() for s in shingles))
    return number, len(set(hashes))


def main():
    signal.alarm(300)
    torch.set_num_threads(1)
    print("ONSET", flush=True)
    kept = []
    with mp.get_context("spawn").Pool(2, initializer=start) as pool:
        for number, count in pool.imap_unordered(process_chunk, range(400)):
            kept.append(count)
            if number % 10 == 0:
                print("chunk", number, count, flush=True)
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        loss = model(torch.randn(64, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
