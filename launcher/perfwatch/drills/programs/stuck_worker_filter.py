"""A worker looks through an endless stream for samples that are long enough, and there are none any more."""

import itertools
import random

import stage
import torch
from torch.utils.data import DataLoader, IterableDataset

args = stage.arguments(__doc__)
SHORTEST, BATCH = 96, 4
PLENTY = 2 * args.steps * BATCH


class Reviews(IterableDataset):
    def stream(self):
        for k in itertools.count():
            if k == PLENTY:
                stage.onset()
            longest = 200 if k < PLENTY else 80
            yield [random.randrange(500) for _ in range(random.randrange(8, longest))]

    def __iter__(self):
        for review in self.stream():
            if len(review) >= SHORTEST:
                yield torch.tensor(review[:SHORTEST])


def main():
    torch.set_num_threads(1)
    words = torch.nn.Embedding(500, 24)
    head = torch.nn.Linear(24 * SHORTEST, 2)
    adamax = torch.optim.Adamax([*words.parameters(), *head.parameters()])
    for batch in DataLoader(Reviews(), batch_size=BATCH, num_workers=1):
        adamax.zero_grad()
        head(words(batch).flatten(1)).square().mean().backward()
        adamax.step()


if __name__ == "__main__":
    main()
