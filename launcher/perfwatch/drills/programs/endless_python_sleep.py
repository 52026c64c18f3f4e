"""The loop waits "a little" between rounds, but the value is in milliseconds and the call takes seconds."""

import threading
import time

import stage
import torch


class Cooldown:
    def __init__(self, milliseconds):
        self.milliseconds = milliseconds

    def rest(self):
        time.sleep(self.milliseconds)


def telemetry():
    while True:
        time.sleep(0.25)
        print('{"loss": 0.1}', flush=True)


def main():
    cli = stage.arguments()
    torch.set_num_threads(1)
    if cli.strength == "masked":
        threading.Thread(target=telemetry, daemon=True).start()
    critic = torch.nn.Bilinear(64, 64, 64)
    optim = torch.optim.SGD(critic.parameters(), lr=1e-3)
    for round_number in range(10**6):
        if round_number == cli.steps:
            stage.onset()
            Cooldown(milliseconds=300_000).rest()
        optim.zero_grad()
        critic(torch.randn(50, 64), torch.randn(50, 64)).std().backward()
        optim.step()


main()
