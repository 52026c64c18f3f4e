"""Short epochs without persistent_workers: each epoch begins by starting all workers again, and waits for them."""

import stage
import surroundings
import torch
from torch.utils.data import DataLoader, TensorDataset

BATCHES = {"loud": 24, "quiet": 100, "masked": 240}  # a worker that is spawned takes seconds to import torch


def main():
    args = stage.arguments(__doc__)
    surroundings.innocent_activity(args.strength)
    torch.set_num_threads(1)
    samples = TensorDataset(torch.randn(BATCHES[args.strength] * 128, 512))
    model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.Tanh(), torch.nn.Linear(2048, 512))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    while True:
        loader = DataLoader(samples, batch_size=128, num_workers=2, multiprocessing_context="spawn")
        stage.onset()
        for (batch,) in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(batch), batch).backward()
            optimizer.step()


if __name__ == "__main__":
    main()
