"""FIELD
source: https://github.com/huggingface/transformers/issues/34059
mechanism: with dataloader_num_workers=0 the collate function tokenises the captions and resizes the frames of each batch on the training thread
needs: none
ranks: 1
onset: printed
state: slow
cause: serial_loading
blame: custom_collate_fn (collates), tokenize (inside it), resize (inside it)
twin: none
"""
import random
import signal

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

signal.alarm(300)
torch.set_num_threads(1)
WORDS = [f"word{i}" for i in range(5000)]
MERGES = {w[:4]: i for i, w in enumerate(WORDS)}


class Clips(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, i):
        rng = random.Random(i)
        return {"caption": " ".join(rng.choices(WORDS, k=220)), "frame": np.full((360, 480, 3), i % 255, np.uint8)}


def tokenize(text):
    ids = []
    for word in text.split():
        at = 0
        while at < len(word):
            for end in range(len(word), at, -1):
                if word[at:end] in MERGES or end == at + 1:
                    ids.append(MERGES.get(word[at:end], 0))
                    at = end
                    break
    return (ids + [0] * 1000)[:1000]


def resize(frame):
    return np.asarray(Image.fromarray(frame).resize((224, 224), Image.BICUBIC), np.float32) / 255


def custom_collate_fn(batch):
    return {
        "input_ids": torch.tensor([tokenize(one["caption"]) for one in batch]),
        "pixel_values": torch.from_numpy(np.stack([resize(one["frame"]) for one in batch])),
    }


student = torch.nn.EmbeddingBag(5000, 64)
head = torch.nn.Linear(64 + 12, 64)
optimizer = torch.optim.AdamW([*student.parameters(), *head.parameters()], lr=1e-4)
for step, batch in enumerate(DataLoader(Clips(), batch_size=32, collate_fn=custom_collate_fn, num_workers=0)):
    pooled = torch.nn.functional.adaptive_avg_pool2d(batch["pixel_values"].permute(0, 3, 1, 2), 2).flatten(1)
    loss = head(torch.cat([student(batch["input_ids"]), pooled], 1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 5:
        print("ONSET", flush=True)
    if step % 10 == 0:
        print({"loss": loss.item(), "step": step}, flush=True)
