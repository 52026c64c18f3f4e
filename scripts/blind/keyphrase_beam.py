"""FIELD
source: memray/seq2seq-keyphrase-pytorch#16 (validation with beam search; "I thought the training was suspended", it only took long)
mechanism: a validation decodes documents with a wide beam in Python for some six minutes, the optimizer rests meanwhile
needs: cpu
ranks: 1
onset: printed
state: busy
cause: evaluating
blame: none
twin: none
"""
import heapq
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
VOCAB, HIDDEN, BOS, EOS = 2000, 128, 1, 2


class Seq2Seq(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, HIDDEN)
        self.encoder = nn.GRU(HIDDEN, HIDDEN, batch_first=True)
        self.cell = nn.GRUCell(HIDDEN, HIDDEN)
        self.project = nn.Linear(HIDDEN, VOCAB)

    def encode(self, src):
        return self.encoder(self.embed(src))[1][0]

    def forward(self, src, tgt):
        h, loss = self.encode(src), 0.0
        for t in range(tgt.shape[1] - 1):
            h = self.cell(self.embed(tgt[:, t]), h)
            loss = loss + F.cross_entropy(self.project(h), tgt[:, t + 1])
        return loss / (tgt.shape[1] - 1)


def beam_search(model, src, width=64, max_len=12):
    beams = [(0.0, [BOS], model.encode(src))]
    done = []
    for _ in range(max_len):
        grown = []
        for score, words, h in beams:
            h = model.cell(model.embed(torch.tensor([words[-1]])), h)
            logp, ids = F.log_softmax(model.project(h), -1)[0].topk(width)
            for lp, w in zip(logp.tolist(), ids.tolist()):
                (done if w == EOS else grown).append((score + lp, words + [w], h))
        beams = heapq.nlargest(width, grown, key=lambda b: b[0])
    return heapq.nlargest(10, done + beams, key=lambda b: b[0] / len(b[1]))


@torch.no_grad()
def validate(model, max_seconds):
    model.eval()
    started, hits, docs = time.time(), 0, 0
    while time.time() - started < max_seconds:
        phrases = beam_search(model, torch.randint(3, VOCAB, (1, 60)))
        hits += sum(5 in words for _, words, _ in phrases)
        docs += 1
    model.train()
    return hits / max(1, docs)


def main():
    model = Seq2Seq()
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    for epoch, budget in enumerate([2, 380, 2]):
        for _ in range(120):
            src, tgt = torch.randint(3, VOCAB, (16, 60)), torch.randint(3, VOCAB, (16, 10))
            loss = model(src, tgt)
            opt.zero_grad()
            loss.backward()
            opt.step()
        if budget > 100:
            print("ONSET", flush=True)
        print(f"epoch {epoch} loss {loss.item():.3f} f1@10 {validate(model, budget):.4f}", flush=True)


if __name__ == "__main__":
    main()
