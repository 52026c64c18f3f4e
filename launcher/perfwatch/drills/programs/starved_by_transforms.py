"""Photos are blurred so often in the loader's workers that the model waits for almost every batch."""

import time

import stage
import surroundings
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

LOST = {"loud": 2.5, "quiet": 1.0, "masked": 0.4}  # the wait for one batch, in steps
BATCH = 4


class Photos(Dataset):
    def __init__(self, calm, steps, pace):
        self.calm, self.steps, self.pace = calm, steps, pace
        self.kernel = torch.ones(3, 1, 5, 5) / 25

    def __len__(self):
        return 10_000_000

    def __getitem__(self, index):
        photo = torch.rand(1, 3, 96, 96)
        seconds = self.steps * self.pace.seconds if index >= self.calm else 0.0
        return self.augment(photo, seconds)[0], index % 10

    def augment(self, photo, seconds):
        until = time.monotonic() + seconds
        while True:
            photo = nn.functional.conv2d(photo, self.kernel, padding=2, groups=3)
            if time.monotonic() >= until:
                return photo


args = stage.arguments(__doc__)
surroundings.innocent_activity(args.strength)
torch.set_num_threads(1)
classifier = nn.Sequential(
    nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 48, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(48 * 46 * 46, 10)
)
optimizer = torch.optim.SGD(classifier.parameters(), lr=1e-3)


def train_step(photos, labels):
    optimizer.zero_grad()
    nn.functional.cross_entropy(classifier(photos), labels).backward()
    optimizer.step()


pace = surroundings.Pace()
album = Photos(args.steps * BATCH, (1 + LOST[args.strength]) / BATCH, pace)
for step, (photos, labels) in enumerate(DataLoader(album, batch_size=BATCH, num_workers=1)):
    if step == args.steps:
        stage.onset()
    with pace:
        train_step(photos, labels)
