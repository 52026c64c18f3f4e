"""Two workers split and hash text in pure Python, more slowly than the model takes to learn from it."""

import itertools
import time

import stage
import surroundings
import torch
from torch.utils.data import DataLoader, IterableDataset

SLOWER = {"loud": 6, "quiet": 2.5, "masked": 1.8}  # a batch takes the workers so many steps
BATCH, WORKERS = 16, 2
SENTENCE = "the quick brown fox jumps over the lazy dog while nobody looks at it".split()


def encode(words, seconds):
    merged, until = {}, time.monotonic() + seconds
    for turn in itertools.count():
        for left, right in itertools.pairwise(words):
            pair = left[: 1 + turn % 3] + right
            merged[pair] = merged.get(pair, 0) + len(pair)
        if turn >= 15 and time.monotonic() >= until:
            return [count % 997 for count in list(merged.values())[:32]]


class Corpus(IterableDataset):
    def __init__(self, calm, steps, pace):
        self.calm, self.steps, self.pace = calm, steps, pace

    def __iter__(self):
        for number in range(10_000_000):
            yield torch.tensor(encode(SENTENCE, self.steps * self.pace.seconds if number >= self.calm else 0.0))


if __name__ == "__main__":
    args = stage.arguments(__doc__)
    surroundings.innocent_activity(args.strength)
    torch.set_num_threads(1)
    language_model = torch.nn.Sequential(
        torch.nn.Embedding(997, 128),
        torch.nn.Flatten(),
        torch.nn.Linear(32 * 128, 1024),
        torch.nn.ReLU(),
        torch.nn.Linear(1024, 997),
    )
    opt = torch.optim.SGD(language_model.parameters(), lr=0.1)

    def learn(tokens):
        # Nothing that can be learnt: a loss of zero ends in denormal gradients, and a step of them takes seven times as long.
        loss = torch.nn.functional.cross_entropy(language_model(tokens), torch.randint(997, (BATCH,)))
        opt.zero_grad()
        loss.backward()
        opt.step()

    pace = surroundings.Pace()
    corpus = Corpus(args.steps * BATCH // WORKERS, SLOWER[args.strength] * WORKERS / BATCH, pace)
    for step, tokens in enumerate(DataLoader(corpus, batch_size=BATCH, num_workers=WORKERS)):
        if step == args.steps:
            stage.onset()
        with pace:
            learn(tokens)
