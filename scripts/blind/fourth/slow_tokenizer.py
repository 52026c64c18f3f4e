"""FIELD
source: huggingface/transformers#19702 and huggingface/datasets#6319 (the slow tokenizer, called for each batch in the loop)
mechanism: a byte-pair tokenizer in plain Python encodes every batch of sentences in the training loop before the forward pass
needs: none
ranks: 1
onset: printed
state: slow
cause: serial_loading, host_bound_python
blame: bpe (slow_tokenizer.py), encode (slow_tokenizer.py), encode_batch (slow_tokenizer.py)
twin: none
"""

import random
import re
import signal

import torch

signal.alarm(300)
torch.set_num_threads(1)
rng = random.Random(0)
ALPHABET = "etaoinshrdlucmfwypvbgkjqxz"
RANKS = {(a, b): i for i, (a, b) in enumerate((a, b) for a in ALPHABET for b in ALPHABET)}


def sentence():
    return " ".join("".join(rng.choices(ALPHABET, k=rng.randint(3, 14))) for _ in range(120))


def bpe(word):
    symbols = list(word)
    while len(symbols) > 1:
        pairs = [(RANKS.get((a, b), 10**9), i) for i, (a, b) in enumerate(zip(symbols, symbols[1:]))]
        rank, i = min(pairs)
        if rank == 10**9:
            break
        symbols[i : i + 2] = ["".join(symbols[i : i + 2])]
    return symbols


def encode(text):
    return [hash(piece) % 5000 for word in re.findall(r"\w+|[^\w\s]", text) for piece in bpe(word)]


def encode_batch(texts, length=128):
    ids = torch.zeros(len(texts), length, dtype=torch.long)
    for row, text in enumerate(texts):
        piece = encode(text)[:length]
        ids[row, : len(piece)] = torch.tensor(piece)
    return ids


corpus = [sentence() for _ in range(500)]
emb = torch.nn.Embedding(5000, 64)
gru = torch.nn.GRU(64, 64, batch_first=True)
head = torch.nn.Linear(64, 2)
params = [*emb.parameters(), *gru.parameters(), *head.parameters()]
opt = torch.optim.AdamW(params, lr=1e-3)
for step in range(10**6):
    ids = encode_batch(rng.sample(corpus, 64))
    loss = torch.nn.functional.cross_entropy(head(gru(emb(ids))[1][0]), torch.randint(0, 2, (64,)))
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step == 15:
        print("ONSET", flush=True)
    if step % 10 == 0:
        print("step", step, "loss", round(loss.item(), 4), flush=True)
