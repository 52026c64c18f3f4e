"""/dev/shm holds a large cache that stays as it is, with room enough left for the workers' batches. Healthy."""

from pathlib import Path

import stage
import surroundings
import torch
from torch.utils.data import DataLoader, TensorDataset


def train():
    args = stage.arguments(__doc__)
    surroundings.small_shared_memory(96 << 20)
    Path("/dev/shm/feature-cache").write_bytes(bytes(64 << 20))
    torch.set_num_threads(1)
    features = TensorDataset(torch.randn(2048, 512))
    decoder = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 512))
    optimizer = torch.optim.SGD(decoder.parameters(), lr=1e-3)
    step = 0
    loader = DataLoader(features, batch_size=128, num_workers=1, persistent_workers=True, shuffle=True)
    while True:
        for (x,) in loader:
            if step == args.steps:
                stage.onset()
            step += 1
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(decoder(x), x).backward()
            optimizer.step()


if __name__ == "__main__":
    train()
