"""FIELD
source: Zulko/moviepy#576, dgrauet/ltx-2-mlx#92 (stderr of the decoder is a pipe that nobody reads)
mechanism: a decoder child per clip writes frames to stdout and its warnings to stderr=PIPE; a damaged clip makes it
    complain so much that the pipe of stderr is full, it blocks there, and the trainer blocks reading frames
needs: none
ranks: 1
onset: printed
state: hung
cause: blocked_pipe, blocked_child
blame: none
twin: none
"""
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import torch
from torch import nn

SIDE, FRAMES = 48, 24
DECODER = textwrap.dedent(
    """
    import array, ctypes, random, signal, sys
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    signal.alarm(300)
    side, frames, seed, damaged = map(int, sys.argv[1:])
    rng = random.Random(seed)
    for number in range(frames):
        if damaged:
            for macroblock in range(side * side // 8):
                print(f"[h264 @ 0x55d0] error while decoding MB {macroblock % 48} {number}, bytestream {-macroblock}", file=sys.stderr)
        sys.stdout.buffer.write(rng.randbytes(side * side))
    """
)


def decode(seed, damaged):
    """Yields the frames of one clip as they leave the decoder."""
    command = [sys.executable, "-S", "-c", DECODER, str(SIDE), str(FRAMES), str(seed), str(int(damaged))]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        while True:
            raw = child.stdout.read(SIDE * SIDE)
            if len(raw) < SIDE * SIDE:
                break
            yield np.frombuffer(raw, dtype=np.uint8).reshape(SIDE, SIDE)
        if child.wait() != 0:
            raise RuntimeError(child.stderr.read().decode())
    finally:
        child.stdout.close()
        child.stderr.close()


class ClipNet(nn.Module):
    def __init__(self, species=9):
        super().__init__()
        self.stem = nn.Conv3d(1, 12, (3, 5, 5), stride=(1, 2, 2), padding=(1, 2, 2))
        self.body = nn.Conv3d(12, 24, 3, stride=2, padding=1)
        self.head = nn.Linear(24, species)

    def forward(self, clip):
        return self.head(torch.relu(self.body(torch.relu(self.stem(clip)))).mean((2, 3, 4)))


def train():
    net = ClipNet()
    optimiser = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9, nesterov=True)
    born, clip, damaged = time.monotonic(), 0, False
    while True:
        if not damaged and time.monotonic() - born > 16:
            damaged = True
            print("ONSET", flush=True)
        frames = torch.from_numpy(np.stack(list(decode(clip, damaged)))).float() / 255
        views = torch.stack([frames, frames.flip(0), frames.flip(2), frames.roll(7, 1)])[:, None]
        target = torch.full((4,), clip % 9)
        for _ in range(3):
            loss = nn.functional.cross_entropy(net(views + 0.05 * torch.randn_like(views)), target)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
        clip += 1
        if clip % 10 == 0:
            print(f"clip {clip:5d}  loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    signal.alarm(300)
    torch.set_num_threads(1)
    train()
