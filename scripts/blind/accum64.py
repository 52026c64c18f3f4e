"""FIELD
source: own (large effective batch on a small machine: one optimizer step after 64 micro-batches)
mechanism: gradient accumulation over 64 micro-batches, so that the optimizer steps only once in half a minute or so
needs: cpu
ranks: 1
onset: printed
state: healthy
cause: cpu_training, balanced
blame: none
twin: none
"""
import time

import torch
import torch.nn as nn

torch.set_num_threads(1)
ACCUMULATE = 64


class LanguageModel(nn.Module):
    def __init__(self, vocab=4000, width=160, depth=3):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, dropout=0.0, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocab)

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        return self.head(self.blocks(self.embed(ids), mask=mask, is_causal=True))


def micro_batches(size, length):
    while True:
        ids = torch.randint(0, 4000, (size, length + 1))
        ids[:, 1::2] = ids[:, 0:-1:2]
        yield ids[:, :-1], ids[:, 1:]


def main():
    model = LanguageModel()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)
    began = time.time()
    for size, length, accumulate, seconds in [(2, 64, 4, 8), (3, 192, ACCUMULATE, 430)]:
        if accumulate == ACCUMULATE:
            print("ONSET", flush=True)
        stream, until = micro_batches(size, length), time.time() + seconds
        while time.time() < until:
            total = 0.0
            for _ in range(accumulate):
                x, y = next(stream)
                loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten()) / accumulate
                loss.backward()
                total += loss.item()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            opt.zero_grad(set_to_none=True)
            if accumulate == ACCUMULATE or time.time() > until:
                print(f"{time.time() - began:6.1f}s loss {total:.4f}", flush=True)


if __name__ == "__main__":
    main()
