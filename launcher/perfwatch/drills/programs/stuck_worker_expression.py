"""A DataLoader worker meets a text on which its regular expression needs longer than the universe has."""

import re

import stage
import torch
from torch.utils.data import DataLoader, Dataset

args = stage.arguments(__doc__)
SENTENCE = re.compile(r"^(\w+[ ,]?)+[.]$")


class Captions(Dataset):
    def __len__(self):
        return 10**9

    def __getitem__(self, index):
        if index == 16 * args.steps:
            stage.onset()
        words = "a caption of some words" if index < 16 * args.steps else "an" * 40 + "\N{BULLET}"
        return torch.full((300,), float(self.is_sentence(words)))

    def is_sentence(self, text):
        return SENTENCE.match(text + ".") is not None


def main():
    torch.set_num_threads(1)
    scorer = torch.nn.Linear(300, 300)
    rprop = torch.optim.Rprop(scorer.parameters())
    for batch in DataLoader(Captions(), batch_size=16, num_workers=2):
        rprop.zero_grad()
        scorer(batch).square().mean().backward()
        rprop.step()


if __name__ == "__main__":
    main()
