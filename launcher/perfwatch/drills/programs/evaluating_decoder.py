"""A long validation whose model writes each answer word by word, in a loop of its forward pass: seconds for each batch."""

import stage
import torch
from torch import nn


class Writer(nn.Module):
    def __init__(self, width=128, words=128):
        super().__init__()
        self.embed, self.cell, self.head = nn.Embedding(words, width), nn.GRUCell(width, width), nn.Linear(width, words)

    def forward(self, first, length):
        state = torch.zeros(first.shape[0], 128)
        written = [first]
        while len(written) < length:
            state = self.cell(self.embed(written[-1]), state)
            written.append(self.head(state).argmax(-1))
        return torch.stack(written, 1)


opt = stage.arguments(__doc__)
torch.set_num_threads(1)
writer = Writer()
sgd = torch.optim.SGD(writer.parameters(), 1e-3)
while True:
    for _ in range(opt.steps):
        words = torch.randint(128, (64,))
        loss = nn.functional.cross_entropy(writer.head(writer.cell(writer.embed(words), torch.zeros(64, 128))), words)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
    stage.onset()
    with torch.no_grad():
        for _ in range(100_000):
            answers = writer(torch.randint(128, (256,)), 800)
            votes = torch.zeros(256, 128).scatter_add_(1, answers, torch.ones(answers.shape))
            agreed = (votes.topk(5).indices == answers[:, :1]).float().mean().item()
