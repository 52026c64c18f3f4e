"""FIELD
source: own (graph classification with torch_geometric as its examples do it)
mechanism: a GIN is trained on random graphs of thirty nodes, batched by torch_geometric's loader with two workers; nothing is wrong
needs: none
ranks: 1
onset: printed
state: healthy
cause: cpu_training, balanced
blame: none
twin: pyg_distances
"""

import signal

signal.alarm(300)

import torch
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINConv, global_add_pool

torch.set_num_threads(1)
graphs = [
    Data(x=torch.randn(30, 32), edge_index=torch.randint(0, 30, (2, 90)), y=torch.randint(0, 2, (1,)))
    for _ in range(2000)
]


def layer(width):
    return GINConv(torch.nn.Sequential(torch.nn.Linear(width, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256)))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([layer(32), layer(256), layer(256), layer(256)])
        self.head = torch.nn.Linear(256, 2)

    def forward(self, data):
        x = data.x
        for one in self.layers:
            x = one(x, data.edge_index).relu()
        return self.head(global_add_pool(x, data.batch))


net = Net()
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
loader = DataLoader(graphs, batch_size=64, shuffle=True, num_workers=2, persistent_workers=True)
step = 0
while True:
    for data in loader:
        loss = torch.nn.functional.cross_entropy(net(data), data.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step == 40:
            print("ONSET", flush=True)
    print("step", step, "loss", loss.item(), flush=True)
