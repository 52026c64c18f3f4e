"""FIELD
source: kohya-ss/sd-scripts#140, pytorch/pytorch#15849 (workers are started again at each epoch; the epochs are short)
mechanism: a fine-tuning set of 24 images gives epochs of six steps, and each starts four spawned workers that import torch again
needs: none
ranks: 1
onset: printed
state: slow
cause: worker_respawn
blame: none
twin: none
"""

import signal

import torch
from torch.utils.data import DataLoader, Dataset


class FewImages(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(3, 64, 64, generator=generator)


def start(worker):
    signal.alarm(300)
    torch.set_num_threads(1)


if __name__ == "__main__":
    signal.alarm(300)
    torch.set_num_threads(1)
    unet = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3, padding=1),
        torch.nn.SiLU(),
        torch.nn.Conv2d(32, 32, 3, padding=1),
        torch.nn.SiLU(),
        torch.nn.Conv2d(32, 3, 3, padding=1),
    )
    opt = torch.optim.AdamW(unet.parameters(), lr=1e-4)
    loader = DataLoader(
        FewImages(), batch_size=4, shuffle=True, num_workers=2, worker_init_fn=start, multiprocessing_context="spawn"
    )
    for epoch in range(10**6):
        for image in loader:
            noise = torch.randn_like(image)
            loss = (unet(image + noise) - noise).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        print("epoch", epoch, "loss", loss.item(), flush=True)
        if epoch == 0:
            print("ONSET", flush=True)
