"""Look-alike of a starved GPU: the workers tokenise all the time, and keep up with the model. Healthy."""

import random

import accelerator
import decoder
import stage
import surroundings
import torch
from torch.utils.data import DataLoader, Dataset

SHARE = {"loud": 0.3, "quiet": 0.5, "masked": 0.6}  # of a step, to make a batch
WORKERS, BATCH, LENGTH = 2, 32, 512
TEXT = "".join(random.Random(0).choices("etaoin shrdlu", k=4000))


class Corpus(Dataset):
    def __init__(self, seconds):
        self.seconds = seconds

    def __len__(self):
        return 10**9

    def __getitem__(self, index):
        for _ in range(max(1, round(self.seconds / one_pass))):
            encode(TEXT)
        return torch.randint(decoder.VOCABULARY, (LENGTH + 1,))


def encode(text):
    merged, last = [], ""
    for letter in text:
        merged.append(hash(last + letter) % decoder.VOCABULARY)
        last = letter
    return merged


args = stage.arguments(__doc__)
card = accelerator.device()
model, optimizer = decoder.build(card, 2048, 8, LENGTH)
random_batch = decoder.random_tokens(card, BATCH, LENGTH)
one_step = accelerator.typical_seconds(lambda: decoder.train_step(model, optimizer, random_batch))
one_pass = surroundings.typical_seconds(lambda: encode(TEXT))
corpus = Corpus(one_step * SHARE[args.strength] * WORKERS / BATCH)
loader = DataLoader(corpus, batch_size=BATCH, num_workers=WORKERS, pin_memory=True, prefetch_factor=4)
for step, tokens in enumerate(loader):
    if step == args.steps:
        stage.onset()
    loss = decoder.train_step(model, optimizer, tokens.to(card, non_blocking=True))
    if step % 20 == 0:
        print(step, loss.item(), flush=True)
