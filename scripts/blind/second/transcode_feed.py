"""FIELD
source: nodejs/node#3628 and glaciall/jtt1078-video-server#15 (open() of a FIFO blocks until the other side opens it)
mechanism: a transcoder writes each clip into a named pipe; for one clip it exits with an error before it opens the pipe, and the trainer blocks in open() for ever
needs: cpu
ranks: 1
onset: printed
state: hung
cause: blocked_pipe, dead_worker
blame: decode (transcode_feed.py)
twin: none
"""
import os
import struct
import subprocess
import sys
import tempfile
import wave
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn

torch.set_num_threads(1)

TRANSCODER = r"""
import array, sys, wave
src, dst, rate = sys.argv[1], sys.argv[2], int(sys.argv[3])
with wave.open(src) as clip:
    step = clip.getframerate() / rate
    data = array.array("h", clip.readframes(clip.getnframes()))
out = array.array("h", (data[int(i * step)] for i in range(int(len(data) / step))))
with open(dst, "wb") as sink:
    sink.write(out.tobytes())
"""


def write_clips(root, n):
    rng = np.random.default_rng(0)
    paths = []
    for i in range(n):
        path = root / f"clip{i:03d}.wav"
        with wave.open(str(path), "wb") as clip:
            clip.setnchannels(1)
            clip.setsampwidth(2)
            clip.setframerate(16000)
            tone = np.sin(np.arange(32000) * rng.uniform(0.02, 0.4)) * 12000
            clip.writeframes(tone.astype(np.int16).tobytes())
        paths.append(path)
    broken = paths[-6]
    raw = bytearray(broken.read_bytes())
    raw[34:36] = struct.pack("<H", 0)
    broken.write_bytes(raw[:36])
    return paths


def decode(path, pipe):
    subprocess.Popen([sys.executable, "-c", TRANSCODER, str(path), str(pipe), "8000"], stderr=subprocess.DEVNULL)
    with open(pipe, "rb") as source:
        samples = np.frombuffer(source.read(), dtype=np.int16)
    return torch.from_numpy(samples.astype(np.float32) / 32768).view(-1, 160)


def main():
    root = Path(tempfile.mkdtemp(prefix="clips_"))
    clips = write_clips(root, 30)
    pipe = root / "decoded"
    os.mkfifo(pipe)
    net = nn.Sequential(nn.Linear(160, 256), nn.Tanh(), nn.Linear(256, 32), nn.Tanh(), nn.Linear(32, 160))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    for epoch in range(20):
        for i, clip in enumerate(clips):
            if i == len(clips) - 6:
                print("ONSET", flush=True)
            frames = decode(clip, pipe)
            for _ in range(60):
                loss = nn.functional.mse_loss(net(frames), frames)
                opt.zero_grad()
                loss.backward()
                opt.step()
        print(f"epoch {epoch} loss {loss.item():.5f}", flush=True)


if __name__ == "__main__":
    main()
