"""Two workers split and hash text in pure Python, more slowly than the model takes to learn from it."""

from itertools import pairwise

import stage
import surroundings
import torch
from torch.utils.data import DataLoader, IterableDataset

SLOWER = {"loud": 6, "quiet": 2.5, "masked": 1.8}  # a batch takes the workers so many steps
BATCH, WORKERS = 16, 2
SENTENCE = "the quick brown fox jumps over the lazy dog while nobody looks at it".split()


def encode(words, repeats):
    merged = {}
    for turn in range(repeats * 16):
        for left, right in pairwise(words):
            pair = left[: 1 + turn % 3] + right
            merged[pair] = merged.get(pair, 0) + len(pair)
    return [count % 997 for count in list(merged.values())[:32]]


class Corpus(IterableDataset):
    def __init__(self, calm, repeats):
        self.calm, self.repeats = calm, repeats

    def __iter__(self):
        for number in range(10_000_000):
            yield torch.tensor(encode(SENTENCE, self.repeats if number > self.calm else 1))


if __name__ == "__main__":
    args = stage.arguments(__doc__)
    surroundings.innocent_activity(args.strength)
    torch.set_num_threads(1)
    language_model = torch.nn.Sequential(
        torch.nn.Embedding(997, 128),
        torch.nn.Flatten(),
        torch.nn.Linear(32 * 128, 256),
        torch.nn.ReLU(),
        torch.nn.Linear(256, 997),
    )
    opt = torch.optim.SGD(language_model.parameters(), lr=0.1)

    def learn(tokens):
        # Nothing that can be learnt: a loss of zero ends in denormal gradients, and a step of them takes seven times as long.
        loss = torch.nn.functional.cross_entropy(language_model(tokens), torch.randint(997, (BATCH,)))
        opt.zero_grad()
        loss.backward()
        opt.step()

    step_seconds = surroundings.typical_seconds(lambda: learn(torch.randint(997, (BATCH, 32))))
    once_seconds = surroundings.typical_seconds(lambda: encode(SENTENCE, 1))
    repeats = max(1, round(SLOWER[args.strength] * step_seconds * WORKERS / (BATCH * once_seconds)))
    corpus = Corpus(args.steps * 8, repeats)
    for step, tokens in enumerate(DataLoader(corpus, batch_size=BATCH, num_workers=WORKERS)):
        if step == args.steps:
            stage.onset()
        learn(tokens)
