"""num_workers=0 too, but the samples lie in memory and cost next to nothing. Healthy."""

import stage
import torch
from torch.utils.data import DataLoader, TensorDataset


def main():
    args = stage.arguments(__doc__)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dataset = TensorDataset(torch.randn(4096, 1, 28, 28), torch.randint(10, (4096,)))
    lenet = torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 5), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(16, 32, 5), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(32 * 64, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(lenet.parameters(), lr=0.01)
    seen = 0
    while True:
        for images, labels in DataLoader(dataset, batch_size=64, shuffle=True):
            if seen == args.steps:
                stage.onset()
            seen += 1
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(lenet(images), labels).backward()
            optimizer.step()


main()
