"""FIELD
source: pyg-team/pytorch_geometric#10805 and pyg-team/pytorch_geometric#5348 (training hangs at the first batch of a loader, its forked workers are idle)
mechanism: a background thread of the training process refreshes node features under a lock; the loader of the second stage forks its
    workers while the lock is held, so each worker waits for ever for a lock whose holder does not exist in it
needs: none
ranks: 1
onset: printed
state: hung
cause: stuck_worker, deadlocked_locks
blame: get (scripts/blind/libraries/pyg_idle_workers.py)
twin: pyg_molecules
"""

import signal
import threading
import time

signal.alarm(300)

import torch
from torch_geometric.data import Data, Dataset
from torch_geometric.loader import DataLoader
from torch_geometric.nn import SAGEConv, global_mean_pool

torch.set_num_threads(1)


class FeatureStore:
    def __init__(self):
        self.lock, self.table, self.refreshing = threading.Lock(), torch.randn(5000, 48), threading.Event()

    def rows(self, ids):
        with self.lock:
            return self.table[ids].clone()

    def refresh(self):
        with self.lock:
            self.refreshing.set()
            for start in range(0, 5000, 500):
                self.table[start : start + 500] = torch.randn(500, 48)
                time.sleep(0.3)


class Neighbourhoods(Dataset):
    def __init__(self, store):
        super().__init__()
        self.store = store

    def len(self):
        return 20_000

    def get(self, index):
        ids = torch.randint(0, 5000, (24,))
        return Data(x=self.store.rows(ids), edge_index=torch.randint(0, 24, (2, 80)), y=torch.tensor([index % 4]))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = SAGEConv(48, 96), SAGEConv(96, 96), torch.nn.Linear(96, 4)

    def forward(self, data):
        x = self.first(data.x, data.edge_index).relu()
        x = self.second(x, data.edge_index).relu()
        return self.head(global_mean_pool(x, data.batch))


store, net = FeatureStore(), Net()
optimizer = torch.optim.Adam(net.parameters(), 1e-3)


def stage(workers, steps):
    for step, data in enumerate(DataLoader(Neighbourhoods(store), batch_size=64, num_workers=workers)):
        loss = torch.nn.functional.cross_entropy(net(data), data.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print("workers", workers, "step", step, loss.item(), flush=True)
        if step == steps:
            return


stage(0, 80)
threading.Thread(target=store.refresh, daemon=True).start()
store.refreshing.wait()
print("ONSET", flush=True)
stage(2, 1_000_000)
