"""FIELD
source: https://github.com/audeering/audb/issues/497
mechanism: a crashed run left its soft lock file in the shared cache; the next run, between two fits, polls for it to vanish
needs: none
ranks: 1
onset: printed
state: hung
cause: waiting_for_file
blame: cached_corpus (takes the lock), acquire (the library's loop)
twin: none
"""
import os
import signal
import tempfile

import torch
from filelock import SoftFileLock

signal.alarm(300)
torch.set_num_threads(1)
cache = tempfile.mkdtemp(prefix="audio-cache-")


def cached_corpus(name):
    with SoftFileLock(os.path.join(cache, name + ".lock")):
        target = os.path.join(cache, name + ".pt")
        if not os.path.exists(target):
            torch.save(torch.randn(512, 400), target)
        return torch.load(target)


def fit(corpus, epochs, head):
    optimizer = torch.optim.RMSprop(head.parameters(), lr=1e-4)
    for epoch in range(epochs):
        for wave in corpus.split(64):
            spectrum = torch.fft.rfft(wave).abs()
            loss = torch.nn.functional.cross_entropy(head(spectrum), torch.randint(0, 8, (len(wave),)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if epoch % 50 == 0:
            print("epoch", epoch, "loss", loss.item(), flush=True)


head = torch.nn.Sequential(torch.nn.Linear(201, 512), torch.nn.Tanh(), torch.nn.Linear(512, 8))
fit(cached_corpus("emodb"), 200, head)
with open(os.path.join(cache, "musan.lock"), "w") as left_over:
    left_over.write("20117\nnode17\n")  # the run that wrote this died with its host
print("ONSET", flush=True)
fit(cached_corpus("musan"), 10**6, head)
