"""Look-alike of a stuck child: the trainer waits for a compressor that works hard for half a minute, and ends."""

import os
import subprocess
import sys
import time

import stage


def compress(target):
    import lzma

    until = time.monotonic() + 30
    with lzma.open(target, "wb") as packed:
        while time.monotonic() < until:
            packed.write(os.urandom(1 << 18))


def archive_epoch(number):
    stage.onset()
    subprocess.check_call([sys.executable, __file__, "--compress", os.devnull, str(number)])


def main():
    import torch

    options = stage.arguments()
    torch.set_num_threads(1)
    actor = torch.nn.Linear(256, 512)
    sgd = torch.optim.SGD(actor.parameters(), lr=0.1)
    for n in range(1, 10**6):
        sgd.zero_grad()
        actor(torch.randn(256, 256)).relu().mean().backward()
        sgd.step()
        if n % options.steps == 0:
            archive_epoch(n // options.steps)


if "--compress" in sys.argv:
    compress(sys.argv[2])
else:
    main()
