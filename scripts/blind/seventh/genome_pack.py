"""FIELD
source: own (the archive of a run is made by a function registered with atexit)
mechanism: training ends, and the handler that atexit calls packs all embeddings with lzma, piece after piece with a line for
    each tenth, for two minutes or more; then the process ends by itself
needs: none
ranks: 1
onset: printed
state: busy
cause: checkpointing, computing_on_host
blame: none
twin: none
"""
import atexit
import hashlib
import json
import lzma
import pathlib
import signal
import tempfile
import time

import numpy as np
import torch
from torch import nn

PIECES = 850
BASES = np.frombuffer(b"ACGT", dtype=np.uint8)


class MotifNet(nn.Module):
    def __init__(self, motifs=48):
        super().__init__()
        self.scan = nn.Conv1d(4, motifs, 12, padding=6)
        self.gate = nn.Conv1d(motifs, motifs, 5, padding=2, groups=8)
        self.readout = nn.Linear(motifs, 1)

    def embed(self, onehot):
        found = torch.relu(self.scan(onehot))
        return (found * torch.sigmoid(self.gate(found))).amax(-1)

    def forward(self, onehot):
        return self.readout(self.embed(onehot)).squeeze(-1)


def sequences(rng, count=48, length=120):
    codes = rng.integers(0, 4, (count, length))
    bound = rng.random(count) < 0.5
    codes[bound, 40:48] = [0, 3, 2, 2, 1, 0, 3, 3]
    onehot = nn.functional.one_hot(torch.from_numpy(codes), 4).transpose(1, 2).float()
    return onehot, torch.from_numpy(bound.astype(np.float32)), BASES[codes]


class Archive:
    """What is worth keeping of a run, packed when the interpreter goes."""

    def __init__(self, model):
        self.model, self.folder = model, pathlib.Path(tempfile.mkdtemp(prefix="genome_"))
        self.manifest = {}
        atexit.register(self.pack)

    def piece(self, number):
        onehot, _, letters = sequences(np.random.default_rng(number), 1100)
        with torch.no_grad():
            vectors = self.model.embed(onehot[:200]).numpy()
        return letters.tobytes() + vectors.astype(np.float16).tobytes()

    def pack(self):
        print("ONSET", flush=True)
        for number in range(PIECES):
            packed = lzma.compress(self.piece(number), preset=9 | lzma.PRESET_EXTREME)
            (self.folder / f"{number:04d}.xz").write_bytes(packed)
            self.manifest[number] = hashlib.sha256(packed).hexdigest()
            if number % (PIECES // 10) == 0:
                print(f"archive: {number} of {PIECES}", flush=True)
        (self.folder / "manifest.json").write_text(json.dumps(self.manifest))


def main():
    signal.alarm(300)
    torch.set_num_threads(1)
    model, rng = MotifNet(), np.random.default_rng()
    Archive(model)
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    until, step = time.monotonic() + 18, 0
    while time.monotonic() < until:
        onehot, bound, _ = sequences(rng)
        loss = nn.functional.binary_cross_entropy_with_logits(model(onehot), bound)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 200 == 0:
            print(f"{step}: {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
