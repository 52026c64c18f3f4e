"""A background thread counts words in Python without a pause: it has the GIL, and the trainer gets it every 5 ms."""

import threading

import stage
import torch

options = stage.arguments(__doc__)
torch.set_num_threads(1)
corpus = " ".join(f"word{n % 977}" for n in range(5_000))


def count_words_for_ever():
    while True:
        counts = {}
        for word in corpus.split():
            counts[word] = counts.get(word, 0) + 1
        sorted(counts, key=lambda word: -counts[word])


layers = [torch.nn.Sequential(torch.nn.LayerNorm(64), torch.nn.Linear(64, 64), torch.nn.GELU()) for _ in range(8)]
net = torch.nn.Sequential(*layers)
adam = torch.optim.Adam(net.parameters(), foreach=False)
for step in range(100_000_000):
    if step == options.steps:
        threading.Thread(target=count_words_for_ever, name="vocabulary", daemon=True).start()
        stage.onset()
    adam.zero_grad()
    net(torch.randn(256, 64)).square().mean().backward()
    adam.step()
