"""FIELD
source: own
mechanism: between two stages of a curriculum the main thread learns a new subword vocabulary in plain Python for two minutes and a half
needs: none
ranks: 1
onset: printed
state: busy
cause: computing_on_host
blame: none
twin: corpus_lock
"""
import collections
import random
import signal
import time

import torch

signal.alarm(300)
torch.set_num_threads(1)


def read_corpus(seed, lines):
    rng = random.Random(seed)
    return [" ".join("".join(rng.choices("etaoinshrdlcum", k=rng.randint(2, 9))) for _ in range(12)) for _ in range(lines)]


def candidate_counts(words):
    counts = collections.Counter()
    for word, frequency in words.items():
        for start in range(len(word)):
            for end in range(start + 1, min(len(word), start + 6) + 1):
                counts[word[start:end]] += frequency
    return counts


def learn_vocabulary(lines, size, seconds):
    end, vocabulary = time.monotonic() + seconds, {}
    words = collections.Counter(word for line in lines for word in line.split())
    while time.monotonic() < end:
        for piece, count in candidate_counts(words).most_common(size):
            vocabulary[piece] = 0.5 * vocabulary.get(piece, 0.0) + count
    return list(vocabulary)[:size]


def stage(name, vocabulary, steps):
    embed = torch.nn.EmbeddingBag(max(2, len(vocabulary)), 128)
    head = torch.nn.Linear(128, 16)
    optimizer = torch.optim.Adam([*embed.parameters(), *head.parameters()])
    for step in range(steps):
        tokens = torch.randint(0, max(2, len(vocabulary)), (256, 24))
        loss = torch.nn.functional.cross_entropy(head(embed(tokens)), torch.randint(0, 16, (256,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(name, step, loss.item(), flush=True)


stage("characters", list("abcdefghijklmnopqrstuvwxyz"), 1500)
print("ONSET", flush=True)
vocabulary = learn_vocabulary(read_corpus(1, 4000), 2000, 150)
stage("subwords", vocabulary, 10**6)
