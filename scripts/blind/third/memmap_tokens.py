"""FIELD
source: own
mechanism: a small language model reads its tokens from a numpy memory map through two persistent workers; compute bound on the CPU
needs: none
ranks: 1
onset: printed
state: healthy
cause: cpu_training, balanced
blame: none
twin: volume_reader
"""
import os
import signal
import tempfile

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

signal.alarm(300)
torch.set_num_threads(1)


class TokenFile(Dataset):
    def __init__(self, path, context):
        self.path, self.context, self.tokens = path, context, None

    def __len__(self):
        return 20_000

    def __getitem__(self, i):
        if self.tokens is None:
            self.tokens = np.memmap(self.path, dtype=np.uint16, mode="r")
        at = (i * 7919) % (len(self.tokens) - self.context - 1)
        window = torch.from_numpy(self.tokens[at : at + self.context + 1].astype(np.int64))
        return window[:-1], window[1:]


class Tiny(torch.nn.Module):
    def __init__(self, vocabulary=512, width=128):
        super().__init__()
        self.embed = torch.nn.Embedding(vocabulary, width)
        layer = torch.nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, norm_first=True, dropout=0.0)
        self.body = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = torch.nn.Linear(width, vocabulary)

    def forward(self, x):
        mask = torch.nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.head(self.body(self.embed(x), mask=mask, is_causal=True))


def main():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "train.bin")
        np.random.default_rng(0).integers(0, 512, 5_000_000, dtype=np.uint16).tofile(path)
        loader = DataLoader(TokenFile(path, 128), batch_size=8, num_workers=2, persistent_workers=True)
        model = Tiny()
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
        step = 0
        while True:
            for x, y in loader:
                loss = torch.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                if step == 40:
                    print("ONSET", flush=True)
                if step % 20 == 0:
                    print(f"iter {step}: loss {loss.item():.4f}", flush=True)


main()
