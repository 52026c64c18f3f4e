"""Look-alike of a prompt: a side thread reads the terminal ("q to quit"), while the main thread trains."""

import os
import pty
import sys
import threading

import stage
import torch


class KeyListener:
    def __init__(self):
        if not sys.stdin.isatty():
            _, terminal = pty.openpty()
            os.dup2(terminal, 0)
            sys.stdin = os.fdopen(0, closefd=False)
        self.quit = False
        threading.Thread(target=self.listen, daemon=True, name="keys").start()

    def listen(self):
        for line in sys.stdin:
            self.quit |= line.strip() == "q"


def main():
    options = stage.arguments()
    torch.set_num_threads(1)
    keys, step = KeyListener(), 0
    disc = torch.nn.Sequential(torch.nn.Conv1d(1, 16, 9), torch.nn.LeakyReLU(), torch.nn.Conv1d(16, 1, 9))
    adam = torch.optim.Adam(disc.parameters())
    while not keys.quit:
        adam.zero_grad()
        disc(torch.randn(16, 1, 500)).mean().backward()
        adam.step()
        step += 1
        if step == options.steps:
            stage.onset()


main()
