"""Workers augment photos all the time, but they keep up: the model never waits. Healthy."""

import stage
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Augmented(Dataset):
    kernel = torch.ones(3, 1, 5, 5) / 25

    def __len__(self):
        return 10_000_000

    def __getitem__(self, index):
        image = torch.rand(1, 3, 96, 96)
        for _ in range(3):
            image = nn.functional.conv2d(image, self.kernel, padding=2, groups=3)
        return image.squeeze(0), index % 10


if __name__ == "__main__":
    options = stage.arguments(__doc__)
    torch.set_num_threads(1)
    net = nn.Sequential(
        nn.Conv2d(3, 32, 3, stride=2), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10)
    )
    net(torch.zeros(1, 3, 96, 96))
    sgd = torch.optim.SGD(net.parameters(), lr=1e-3)
    for i, (x, y) in enumerate(DataLoader(Augmented(), batch_size=4, num_workers=1, prefetch_factor=4)):
        if i == options.steps:
            stage.onset()
        loss = nn.functional.cross_entropy(net(x), y)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
