"""num_workers=0: the training loop itself tokenises its text, line by line, before every step."""

import random

import stage
import surroundings
import torch
from torch.utils.data import DataLoader, Dataset

WORDS = {"loud": 40_000, "quiet": 10_000, "masked": 4_500}


class Lines(Dataset):
    def __init__(self, calm, length):
        self.calm, self.length = calm, length

    def __len__(self):
        return 10_000_000

    def __getitem__(self, index):
        text = " ".join(random.choices("attention is all you need they said".split(), k=64))
        return self.tokenize(text, self.length if index >= self.calm else 64)

    def tokenize(self, text, length):
        ids = []
        for word in text.split() * (length // 64):
            ids.append(hash(word.strip().lower()) % 1000)
        return torch.tensor(ids[:64])


args = stage.arguments(__doc__)
surroundings.innocent_activity(args.strength)
torch.set_num_threads(1)
embedding = torch.nn.Embedding(1000, 128)
encoder = torch.nn.TransformerEncoderLayer(128, 4, dim_feedforward=256, batch_first=True)
optimizer = torch.optim.Adam([*embedding.parameters(), *encoder.parameters()])
for step, tokens in enumerate(DataLoader(Lines(args.steps * 16, WORDS[args.strength]), batch_size=16)):
    if step == args.steps:
        stage.onset()
    optimizer.zero_grad()
    encoder(embedding(tokens)).pow(2).mean().backward()
    optimizer.step()
