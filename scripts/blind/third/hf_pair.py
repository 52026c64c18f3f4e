"""FIELD
source: own
mechanism: two ranks of accelerate with gradient accumulation train a small classifier; the computation is large and the exchange small
needs: none
ranks: 2
onset: printed
state: healthy
cause: cpu_training, balanced
blame: none
twin: verbose_rank
"""
import os
import signal

os.environ["ACCELERATE_USE_CPU"] = "true"

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

signal.alarm(300)
torch.set_num_threads(1)


def main():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    data = TensorDataset(torch.randn(8192, 3, 24, 24), torch.randint(0, 10, (8192,)))
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 48, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(48, 48, 3, padding=1), torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(768, 10),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    loader = DataLoader(data, batch_size=32, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    done = 0
    while True:
        for images, labels in loader:
            with accelerator.accumulate(model):
                loss = torch.nn.functional.cross_entropy(model(images), labels)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            done += 1
            if done == 24 and accelerator.is_main_process:
                print("ONSET", flush=True)
            if done % 16 == 0:
                accelerator.print(f"micro-batch {done} loss {loss.item():.3f}", flush=True)


main()
