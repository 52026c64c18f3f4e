"""Photos are blurred so often in the loader's workers that the model waits for almost every batch."""

import stage
import surroundings
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

BLURS = {"loud": 70, "quiet": 34, "masked": 25}
BATCH = 4


class Photos(Dataset):
    def __init__(self, calm, blurs):
        self.calm, self.blurs = calm, blurs
        self.kernel = torch.ones(3, 1, 5, 5) / 25

    def __len__(self):
        return 10_000_000

    def __getitem__(self, index):
        photo = torch.rand(1, 3, 96, 96)
        return self.augment(photo, self.blurs if index >= self.calm else 1)[0], index % 10

    def augment(self, photo, times):
        for _ in range(times):
            photo = nn.functional.conv2d(photo, self.kernel, padding=2, groups=3)
        return photo


args = stage.arguments(__doc__)
surroundings.innocent_activity(args.strength)
torch.set_num_threads(1)
classifier = nn.Sequential(
    nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 48, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(48 * 46 * 46, 10)
)
optimizer = torch.optim.SGD(classifier.parameters(), lr=1e-3)
loader = DataLoader(Photos(args.steps * BATCH, BLURS[args.strength]), batch_size=BATCH, num_workers=1)
for step, (photos, labels) in enumerate(loader):
    if step == args.steps:
        stage.onset()
    optimizer.zero_grad()
    nn.functional.cross_entropy(classifier(photos), labels).backward()
    optimizer.step()
