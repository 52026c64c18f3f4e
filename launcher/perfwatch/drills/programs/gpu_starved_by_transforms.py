"""A decoder on the GPU is fed by workers that tokenise in pure Python, more slowly than it trains."""

import random

import accelerator
import decoder
import stage
import surroundings
import torch
from torch.utils.data import DataLoader, Dataset

SLOWER = {"loud": 10, "quiet": 3, "masked": 1.6}  # a batch takes so many steps to be made
WORKERS, BATCH, LENGTH = 2, 8, 512
TEXT = "".join(random.Random(0).choices("etaoin shrdlu", k=4000))


class Corpus(Dataset):
    def __init__(self, calm, seconds):
        self.calm, self.seconds = calm, seconds

    def __len__(self):
        return 10**9

    def __getitem__(self, index):
        if index >= self.calm:
            for _ in range(max(1, round(self.seconds / one_pass))):
                encode(TEXT)
        return torch.randint(decoder.VOCABULARY, (LENGTH + 1,))


def encode(text):
    merged, last = [], ""
    for letter in text:
        pair = last + letter
        merged.append(hash(pair) % decoder.VOCABULARY)
        last = letter
    return merged


args = stage.arguments(__doc__)
card = accelerator.device()
surroundings.innocent_activity(args.strength)
model, optimizer = decoder.build(card, 2048, 8, LENGTH)
random_batch = decoder.random_tokens(card, BATCH, LENGTH)
one_step = accelerator.typical_seconds(lambda: decoder.train_step(model, optimizer, random_batch))
one_pass = surroundings.typical_seconds(lambda: encode(TEXT))
corpus = Corpus(args.steps * BATCH, one_step * SLOWER[args.strength] * WORKERS / BATCH)
loader = DataLoader(corpus, batch_size=BATCH, num_workers=WORKERS, pin_memory=True)
for step, tokens in enumerate(loader):
    if step == args.steps:
        stage.onset()
    loss = decoder.train_step(model, optimizer, tokens.to(card, non_blocking=True))
    if step % 20 == 0:
        print(step, loss.item(), flush=True)
