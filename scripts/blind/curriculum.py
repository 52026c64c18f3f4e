"""FIELD
source: own (sequence-length curriculum; the trainer is a generator that the main loop drives)
mechanism: sequences grow from 32 to 1024 tokens during the run as planned, so that steps take longer and longer
needs: cpu
ranks: 1
onset: printed
state: healthy
cause: cpu_training, balanced
blame: none
twin: none
"""
import gc
import time

import torch
import torch.nn as nn

torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x):
        b, t, w = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, 4, w // 4).permute(2, 0, 3, 1, 4)
        a = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, w))
        return x + self.mlp(self.norm2(x))


def lengths(start, end, every):
    length = start
    while True:
        for _ in range(every):
            yield length
        length = min(end, int(length * 1.25))


def trainer(width=128, vocab=1000):
    model = nn.Sequential(nn.Embedding(vocab, width), Block(width), Block(width), nn.Linear(width, vocab))
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4)
    average = [p.detach().clone() for p in model.parameters()]
    loss = None
    while True:
        ids = yield loss
        loss_t = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad()
        loss_t.backward()
        opt.step()
        with torch.no_grad():
            for a, p in zip(average, model.parameters()):
                a.lerp_(p, 0.001)
        loss = loss_t.item()


def main():
    step_fn = trainer()
    next(step_fn)
    plan, began, announced = lengths(32, 1024, 60), time.time(), False
    for step, length in enumerate(plan):
        ids = torch.randint(0, 1000, (8, length + 1))
        ids[:, 2::2] = ids[:, 1:-1:2]
        loss = step_fn.send(ids)
        if step % 40 == 0:
            gc.collect()
            print(f"step {step} length {length} loss {loss:.3f}", flush=True)
        if not announced and time.time() - began > 10:
            print("ONSET", flush=True)
            announced = True
        if time.time() - began > 470:
            break


if __name__ == "__main__":
    main()
