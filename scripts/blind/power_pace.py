"""FIELD
source: own (a home machine whose owner limits its power draw: the loop rests for a part of each step on purpose)
mechanism: after each step the loop sleeps for a third of the step's duration to limit power, as configured
needs: cpu
ranks: 1
onset: printed
state: healthy
cause: cpu_training, balanced
blame: none
twin: none
"""
import argparse
import time

import torch
import torch.nn as nn

torch.set_num_threads(1)


class DutyCycle:
    """Keeps the share of time at work at `share`."""

    def __init__(self, share):
        self.share, self.mark = share, time.perf_counter()

    def rest(self):
        worked = time.perf_counter() - self.mark
        time.sleep(worked * (1 - self.share) / self.share)
        self.mark = time.perf_counter()


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 32, 4, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 4, 2, 1), nn.ReLU())
        self.up = nn.Sequential(nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(32, 3, 4, 2, 1))

    def forward(self, x):
        return self.up(self.down(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--power-share", type=float, default=0.75)
    parser.add_argument("--minutes", type=float, default=7.5)
    args = parser.parse_args()
    model = Autoencoder()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-4)
    until, step, duty = time.time() + 60 * args.minutes, 0, None
    while time.time() < until:
        x = torch.rand(24, 3, 64, 64)
        loss = (model(x) - x).abs().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if duty is None and time.time() > until - 60 * args.minutes + 8:
            duty = DutyCycle(args.power_share)
            print("ONSET", flush=True)
        elif duty:
            duty.rest()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
