"""FIELD
source: https://github.com/Xingyu-Lin/mbpo_pytorch/issues/8, https://github.com/yenchenlin/nerf-pytorch/issues/42 and https://github.com/Lightning-AI/pytorch-lightning/issues/17359 (anomaly detection left on)
mechanism: after a loss that is not finite the program turns anomaly detection on and never off again, so each of many small operations records a traceback and is checked for NaN
needs: cpu
ranks: 1
onset: printed
state: slow
cause: debug_apis_on
blame: none
twin: none
"""
import time

import torch
import torch.nn as nn


class Cell(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.z, self.r, self.n = (nn.Linear(2 * dim, dim) for _ in range(3))
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids):
        h = torch.zeros(ids.shape[0], self.emb.embedding_dim)
        logits = []
        for t in range(ids.shape[1]):
            x = self.emb(ids[:, t])
            xh = torch.cat([x, h], 1)
            z, r = torch.sigmoid(self.z(xh)), torch.sigmoid(self.r(xh))
            n = torch.tanh(self.n(torch.cat([x, r * h], 1)))
            h = (1 - z) * n + z * h
            logits.append(self.out(h))
        return torch.stack(logits, 1)


def main(max_seconds=600):
    torch.set_num_threads(1)
    text = torch.randint(0, 64, (200000,))
    model = Cell(64, 64)
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    start = mark = time.time()
    step = 0
    while time.time() - start < max_seconds:
        at = torch.randint(0, len(text) - 81, (16,)).tolist()
        ids = torch.stack([text[a:a + 81] for a in at])
        loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        if step == 120:                            # one damaged record in the corpus
            loss = loss * float("inf")
        if not torch.isfinite(loss) and not torch.is_anomaly_enabled():
            print("loss is not finite at step", step, "- looking closer from now on", flush=True)
            torch.autograd.set_detect_anomaly(True)
            print("ONSET", flush=True)
            step += 1
            continue
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if step % 25 == 0:
            print(f"step {step} loss {loss.item():.3f} {25 / (time.time() - mark):.1f} steps/s", flush=True)
            mark = time.time()


if __name__ == "__main__":
    main()
