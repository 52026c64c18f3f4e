"""FIELD
source: pyg-team/pytorch_geometric#7094 and pyg-team/pytorch_geometric#2095 (a transform that searches shortest paths with networkx is
    applied at every access instead of once as pre_transform)
mechanism: a data set of graphs whose transform converts each graph to networkx and runs a breadth-first search from every node; the
    training thread does this itself for every sample of every batch
needs: none
ranks: 1
onset: printed
state: slow
cause: serial_loading
blame: forward (scripts/blind/libraries/pyg_distances.py), bfs_distances (scripts/blind/libraries/pyg_distances.py), single_source_shortest_path_length (networkx)
twin: pyg_molecules
"""

import signal

signal.alarm(300)

import networkx
import torch
from torch_geometric.data import Data, Dataset
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, global_mean_pool
from torch_geometric.transforms import BaseTransform
from torch_geometric.utils import to_networkx

torch.set_num_threads(1)


class DistanceToNodes(BaseTransform):
    def forward(self, data):
        data.x = torch.cat([data.x, self.bfs_distances(data)], -1)
        return data

    def bfs_distances(self, data):
        graph, rows = to_networkx(data), []
        for node in range(data.num_nodes):
            lengths = networkx.single_source_shortest_path_length(graph, node)
            found = torch.tensor(list(lengths.values()), dtype=torch.float)
            rows.append(torch.stack([found.mean(), found.max(), found.std(correction=0)]))
        return torch.stack(rows)


class Graphs(Dataset):
    def len(self):
        return 10_000

    def get(self, index):
        return Data(x=torch.randn(40, 13), edge_index=torch.randint(0, 40, (2, 120)), y=torch.tensor([index % 2]))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = GCNConv(16, 64), GCNConv(64, 64), torch.nn.Linear(64, 2)

    def forward(self, data):
        x = self.first(data.x, data.edge_index).relu()
        x = self.second(x, data.edge_index).relu()
        return self.head(global_mean_pool(x, data.batch))


net = Net()
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
loader = DataLoader(Graphs(transform=DistanceToNodes()), batch_size=32, shuffle=True)
step = 0
while True:
    for data in loader:
        loss = torch.nn.functional.cross_entropy(net(data), data.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 5 == 0:
            print("step", step, "loss", loss.item(), flush=True)
        if step == 10:
            print("ONSET", flush=True)
