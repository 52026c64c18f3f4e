"""Look-alike of a stuck queue feeder: pickling a batch takes 5 to 7 s of honest work in the feeder thread, then it
arrives.
"""

import random
import time
import zlib

import stage
import torch
from torch.utils.data import DataLoader, Dataset

options = stage.arguments()
torch.set_num_threads(1)


class Compressed:
    def __init__(self, samples):
        self.number, self.data = samples[0][0], torch.stack([t for _, t in samples])

    def __reduce__(self):
        payload = self.data.numpy().tobytes()
        if self.number >= options.steps * 16:
            stage.onset()
            until = time.monotonic() + random.uniform(5, 7)
            while time.monotonic() < until:
                zlib.compress(payload * 50, 6)
        return restore, (payload,)


def restore(payload):
    return torch.frombuffer(bytearray(payload), dtype=torch.float32).view(16, 256)


class Waveforms(Dataset):
    def __len__(self):
        return 16 * 10**5

    def __getitem__(self, i):
        return i, torch.rand(256)


model = torch.nn.Linear(256, 256)
adam = torch.optim.Adam(model.parameters())
for waveform in DataLoader(Waveforms(), 16, num_workers=1, collate_fn=Compressed):
    adam.zero_grad()
    model(waveform).sum().backward()
    adam.step()
