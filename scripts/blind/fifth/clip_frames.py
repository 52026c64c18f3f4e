"""FIELD
source: Zulko/moviepy#576, voxel51/eta#647 (the decoder's stderr is a pipe that is not read; it hangs when that is full)
mechanism: a damaged clip makes the decoder process write a warning per frame to its unread stderr pipe; when the pipe is full it stops, and the DataLoader worker that reads its stdout waits for ever
needs: none
ranks: 1
onset: printed
state: hung
cause: blocked_pipe, stuck_worker, blocked_child
blame: none
twin: none
"""

import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

BEGIN = time.monotonic()
SIDE, FRAMES = 32, 400

DECODER = """
import os, signal, sys, time
signal.alarm(300)
side, frames, damaged = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "damaged"
for n in range(frames):
    if damaged:
        sys.stderr.write("[image2pipe @ 0x5bf4845fdf40] Application provided invalid, non monotonically "
                         "increasing dts to muxer in stream 0: %d >= %d\\n" % (n, n))
        sys.stderr.write("[h264 @ 0x5bf484500e80] error while decoding MB %d %d, bytestream -%d; "
                         "concealing errors in P frame\\n" % (n % 40, n % 22, n))
        sys.stderr.flush()
    sys.stdout.buffer.write(os.urandom(side * side * 3))
    sys.stdout.buffer.flush()
    time.sleep(0.002)
"""


class FrameReader:
    def __init__(self, script, kind):
        command = [sys.executable, script, str(SIDE), str(FRAMES), kind]
        self.proc = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=10**6)

    def frames(self):
        size = SIDE * SIDE * 3
        while True:
            raw = self.proc.stdout.read(size)
            if len(raw) < size:
                break
            yield np.frombuffer(raw, np.uint8).reshape(SIDE, SIDE, 3)
        self.proc.communicate()


class Clips(IterableDataset):
    def __init__(self, script, window=8):
        self.script, self.window = script, window

    def clip_kinds(self):
        reported = False
        while True:
            if not reported and get_worker_info().id == 0 and time.monotonic() - BEGIN > 9:
                reported = True
                print("ONSET", flush=True)
                yield "damaged"
            yield "clean"

    def __iter__(self):
        for kind in self.clip_kinds():
            frames = FrameReader(self.script, kind).frames()
            while stack := list(itertools.islice(frames, self.window)):
                if len(stack) == self.window:
                    clip = torch.from_numpy(np.stack(stack)).permute(3, 0, 1, 2).float() / 255
                    yield clip, clip.mean()


def arm(_worker):
    signal.alarm(300)


def train(folder):
    script = os.path.join(folder, "decode.py")
    with open(script, "w") as out:
        out.write(DECODER)
    loader = DataLoader(Clips(script), batch_size=8, num_workers=2, worker_init_fn=arm)
    net = nn.Sequential(
        nn.Conv3d(3, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv3d(8, 16, 3, stride=2, padding=1),
        nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(16, 1),
    )
    opt = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    for step, (clip, target) in enumerate(loader):
        loss = nn.functional.mse_loss(net(clip).squeeze(1), target)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 10 == 0:
            print(f"step {step:5d} loss {loss.item():.5f}", flush=True)


if __name__ == "__main__":
    signal.alarm(300)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        train(folder)
