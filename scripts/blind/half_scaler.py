"""FIELD
source: https://github.com/pytorch/pytorch/issues/67590 and https://github.com/Lightning-AI/pytorch-lightning/issues/21339 (GradScaler skips the optimizer's steps without a word)
mechanism: from the second stage on one term of the loss overflows in half precision, the scaled gradients are infinite at any scale, and GradScaler.step skips each optimizer step
needs: cpu
ranks: 1
onset: printed
state: slow
cause: skipping_steps
blame: none
twin: none
"""
import time

import torch
import torch.nn as nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256))

    def forward(self, x):
        return self.body(x)


def energy(pred, half):
    """Boltzmann term; kept in half precision like the rest of the loss."""
    p = pred.to(torch.float16) if half else pred
    return torch.exp(p * 4.0).mean().to(torch.float32) * 1e-3


def main(max_seconds=600):
    torch.set_num_threads(1)
    model = Net()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.99999)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    start = time.time()
    step = 0
    while time.time() - start < max_seconds:
        x = torch.randn(128, 256)
        weight = 0.0 if step < 1000 else 1.0
        if step == 1000:
            print("ONSET", flush=True)
        pred = model(x)
        loss = (pred - x).square().mean()
        if weight:
            loss = loss + weight * energy(pred, half=True)
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        sched.step()
        step += 1
        if step % 250 == 0:
            print(f"step {step} lr {sched.get_last_lr()[0]:.2e} mse {(pred - x).square().mean().item():.4f} scale {scaler.get_scale():g}", flush=True)


if __name__ == "__main__":
    main()
