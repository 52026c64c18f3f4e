"""FIELD
source: huggingface/datasets#6846 (dataset["column"][i] decodes the whole column for each row)
mechanism: the collate function of the second stage takes table["ids"][i] instead of table[i]["ids"]; each access decodes the complete column in the training thread
needs: cpu
ranks: 1
onset: printed
state: slow
cause: serial_loading
blame: __getitem__ (column_table.py)
twin: none
"""
import json
import time
import zlib

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader

torch.set_num_threads(1)
VOCAB = 2000


class Table:
    def __init__(self, columns):
        self.cells = {name: [zlib.compress(json.dumps(v).encode(), 1) for v in values] for name, values in columns.items()}

    def __len__(self):
        return len(next(iter(self.cells.values())))

    def __getitem__(self, key):
        if isinstance(key, str):
            return [json.loads(zlib.decompress(cell)) for cell in self.cells[key]]
        return {name: json.loads(zlib.decompress(cells[key])) for name, cells in self.cells.items()}


def build(rows, length):
    rng = np.random.default_rng(1)
    ids = (rng.zipf(1.3, size=(rows, length)) % VOCAB).tolist()
    return Table({"ids": ids, "label": [int(sum(r) % 5) for r in ids]})


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.EmbeddingBag(VOCAB, 128)
        self.head = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 5))

    def forward(self, ids):
        return self.head(self.embed(ids))


def run(stage, table, loader, model, opt, seconds):
    started, step = time.time(), 0
    while time.time() - started < seconds:
        for ids, labels in loader:
            loss = nn.functional.cross_entropy(model(ids), labels)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if step % (100 if stage == 1 else 1) == 0:
                print(f"stage {stage} step {step} loss {loss.item():.3f}", flush=True)
            if time.time() - started > seconds:
                break


def main():
    table = build(1200, 160)
    model = Classifier()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)

    def by_row(rows):
        records = [table[i] for i in rows]
        return torch.tensor([r["ids"] for r in records]), torch.tensor([r["label"] for r in records])

    def with_truncation(rows):
        ids = torch.tensor([table["ids"][i][:128] for i in rows])
        return ids, torch.tensor([table["label"][i] for i in rows])

    rows = list(range(len(table)))
    run(1, table, DataLoader(rows, batch_size=32, shuffle=True, collate_fn=by_row), model, opt, 10)
    print("ONSET", flush=True)
    run(2, table, DataLoader(rows, batch_size=32, shuffle=True, collate_fn=with_truncation), model, opt, 600)


if __name__ == "__main__":
    main()
