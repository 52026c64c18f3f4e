"""FIELD
source: https://github.com/metatensor/metatrain/pull/1271
mechanism: epochs of a second, with workers that are forked and import and warm up anew at the start of each
needs: none
ranks: 1
onset: printed
state: slow
cause: worker_respawn
blame: none
twin: none
"""
import signal

import torch
from torch.utils.data import DataLoader, TensorDataset


def warm(index):
    signal.alarm(300)
    import numpy.polynomial  # noqa: F401

    table = {}
    for i in range(900_000):
        table[i] = i * 3 % 1001
    torch.manual_seed(index)


def collate(rows):
    return torch.stack([x for x, _ in rows]), torch.stack([y for _, y in rows])


def run():
    torch.set_num_threads(1)
    data = TensorDataset(torch.randn(640, 64), torch.randn(640, 1))
    loader = DataLoader(data, batch_size=32, shuffle=True, num_workers=2, collate_fn=collate, worker_init_fn=warm,
                        multiprocessing_context="spawn")
    model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.SiLU(), torch.nn.Linear(512, 512), torch.nn.SiLU(),
                                torch.nn.Linear(512, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(10**6):
        total = 0.0
        for x, y in loader:
            loss = (model(x) - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch} loss {total / 20:.4f}", flush=True)
        if epoch == 1:
            print("ONSET", flush=True)


if __name__ == "__main__":
    signal.alarm(300)
    run()
