"""Workers open a shard for a long moment and then deliver it in a burst, but the prefetch is deep enough. Healthy."""

import time

import stage
import torch
from torch.utils.data import DataLoader, IterableDataset


class TarShards(IterableDataset):
    def __iter__(self):
        for shard in range(1_000_000):
            yield from self.open_shard(shard)

    def open_shard(self, number):
        time.sleep(0.2)
        return torch.full((16, 64, 512), float(number % 5))


if __name__ == "__main__":
    args = stage.arguments(__doc__)
    torch.set_num_threads(1)
    dual_encoder = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 512))
    optimizer = torch.optim.SGD(dual_encoder.parameters(), lr=1e-5)
    loader = DataLoader(TarShards(), batch_size=None, num_workers=2, prefetch_factor=24)
    for step, batch in enumerate(loader):
        if step == args.steps:
            stage.onset()
        optimizer.zero_grad()
        dual_encoder(batch).square().mean().backward()
        optimizer.step()
