"""A GPU idles at two lines, at each for a known part of the time: 60 % of it for the loader, 40 % at ``.item()``.

In every round the workers are late by 0.36 s, then one value that is long computed is read for 0.24 s (a copy of four bytes
and a wait, no kernel), then the model trains for 0.40 s. Rounds are much longer than the looks at the card.
"""

import time

import accelerator
import decoder
import stage
import surroundings
import torch
from torch.utils.data import DataLoader, Dataset

LATE_SECONDS, READ_SECONDS, TRAIN_SECONDS = 0.36, 0.24, 0.40
BATCH, LENGTH = 8, 512


class Late(Dataset):
    def __init__(self, calm):
        self.calm = calm

    def __len__(self):
        return 10**9

    def __getitem__(self, index):
        if index >= self.calm * BATCH and index % BATCH == 0:
            burn(LATE_SECONDS + READ_SECONDS + TRAIN_SECONDS)
        return torch.randint(decoder.VOCABULARY, (LENGTH + 1,))


def burn(seconds):
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        sum(range(1000))


def read_again_and_again(value, seconds):
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        value.item()


def train(tokens, seconds):
    """The next step is always launched before the last one is over: the card never runs dry in here."""
    launched = []
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        decoder.train_step(model, optimizer, tokens)
        launched.append(torch.cuda.Event())
        launched[-1].record()
        if len(launched) > 2:
            launched.pop(0).synchronize()
    torch.cuda.synchronize()


args = stage.arguments(__doc__)
card = accelerator.device()
surroundings.innocent_activity(args.strength)
model, optimizer = decoder.build(card, length=LENGTH)
one_step = accelerator.typical_seconds(
    lambda: decoder.train_step(model, optimizer, decoder.random_tokens(card, BATCH, LENGTH))
)
value = torch.ones((), device=card)
loader = DataLoader(Late(args.steps), batch_size=BATCH, num_workers=1, prefetch_factor=2)
for step, tokens in enumerate(loader):
    if step == args.steps:
        stage.onset(loader=LATE_SECONDS, item=READ_SECONDS, train=TRAIN_SECONDS)
    late = step >= args.steps
    if late:
        read_again_and_again(value, READ_SECONDS)
    train(tokens.to(card), TRAIN_SECONDS if late else one_step)
