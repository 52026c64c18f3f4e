"""Photos are blurred so often in the loader's workers that the model waits for almost every batch."""

import functools

import stage
import surroundings
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

LOST = {"loud": 2.5, "quiet": 1.0, "masked": 0.4}  # the wait for one batch, in steps
BATCH, PROBED = 4, 10


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


def train_step(photos, labels):
    optimizer.zero_grad()
    nn.functional.cross_entropy(classifier(photos), labels).backward()
    optimizer.step()


photo = torch.rand(1, 3, 96, 96)
learns = functools.partial(train_step, photo.repeat(BATCH, 1, 1, 1), torch.arange(BATCH))
blurs_it = functools.partial(Photos(0, 0).augment, photo, PROBED)
with surroundings.beside(blurs_it):  # as in the loop: two threads of one core slow each other down
    one_step = surroundings.typical_seconds(learns)
with surroundings.beside(learns):
    one_blur = surroundings.typical_seconds(blurs_it) / PROBED
blurs = round((1 + LOST[args.strength]) * one_step / BATCH / one_blur)
for step, (photos, labels) in enumerate(DataLoader(Photos(args.steps * BATCH, blurs), batch_size=BATCH, num_workers=1)):
    if step == args.steps:
        stage.onset()
    train_step(photos, labels)
