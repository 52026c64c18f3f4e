"""Look-alike of blocked storage: the same FUSE mount answers every read, each after 1.5 s."""

import slow_mount
import stage
import torch
from torch.utils.data import DataLoader, Dataset

flags = stage.arguments()
torch.set_num_threads(1)
slow_mount.mount("/mnt/nfs-scratch", 32_768, lambda name, _: 0.0 if int(name[6:-4]) < flags.steps else 1.5)


class Volumes(Dataset):
    def __getitem__(self, index):
        if index == flags.steps:
            stage.onset()
        with open(f"/mnt/nfs-scratch/volume{index}.npy", "rb") as file:
            return torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).float()

    def __len__(self):
        return 10**6


segmenter = torch.nn.Linear(32_768, 16)
opt = torch.optim.SGD(segmenter.parameters(), lr=1e-6)
for volume in DataLoader(Volumes(), batch_size=None, num_workers=2):
    opt.zero_grad()
    segmenter(volume).pow(2).mean().backward()
    opt.step()
