"""FIELD
source: own: a binding made with ctypes.PyDLL in place of CDLL keeps the GIL during its blocking call (an audio front end that waits on a semaphore for the next block)
mechanism: the trainer takes blocks of sound from a ring with sem_wait through PyDLL; as long as the reading thread is ahead nothing happens, but when it is late once (the next recording opens slowly) sem_wait blocks with the GIL, and the reader can never post
needs: none
ranks: 1
onset: printed
state: hung
cause: held_gil
blame: take ()
twin: none
"""
import ctypes
import math
import pathlib
import signal
import tempfile
import threading
import time
import wave

import numpy as np
import torch
from torch import nn

RATE, BLOCK = 8000, 2000


class BlockRing:
    """Blocks of PCM between the reading thread and the trainer; the counters are POSIX semaphores."""

    def __init__(self, slots=24):
        self.native = ctypes.PyDLL(None)
        self.filled, self.free = ctypes.create_string_buffer(64), ctypes.create_string_buffer(64)
        self.native.sem_init(self.filled, 0, 0)
        self.native.sem_init(self.free, 0, slots)
        self.blocks, self.slots, self.read, self.written = [None] * slots, slots, 0, 0

    def try_put(self, block):
        if self.native.sem_trywait(self.free) != 0:
            return False
        self.blocks[self.written % self.slots] = block
        self.written += 1
        self.native.sem_post(self.filled)
        return True

    def take(self):
        self.native.sem_wait(self.filled)
        block = self.blocks[self.read % self.slots]
        self.read += 1
        self.native.sem_post(self.free)
        return block


def record(folder, number, seconds):
    times = np.arange(RATE * seconds) / RATE
    sound = np.sin(2 * math.pi * (200 + 40 * number) * times) + 0.2 * np.random.default_rng(number).normal(size=times.size)
    path = folder / f"session{number:02d}.wav"
    with wave.open(str(path), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(RATE)
        out.writeframes((sound / 2 * 32767).clip(-32767, 32767).astype("<i2").tobytes())
    return path


def reader(ring, paths, slow_after):
    begun, told = time.monotonic(), False
    while True:
        for path in paths:
            if not told and time.monotonic() - begun > slow_after:
                told = True
                print("ONSET", flush=True)
                time.sleep(12)  # the archive has to be mounted again
            with wave.open(str(path)) as source:
                while frames := source.readframes(BLOCK):
                    block = np.frombuffer(frames, "<i2").astype(np.float32) / 32768
                    while not ring.try_put(block):
                        time.sleep(0.005)


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv1d(1, 32, 16, stride=8, padding=4)
        self.mid = nn.Sequential(nn.GELU(), nn.Conv1d(32, 32, 5, padding=2), nn.GELU())
        self.up = nn.ConvTranspose1d(32, 1, 16, stride=8, padding=4)

    def forward(self, sound):
        return self.up(self.mid(self.down(sound)))


if __name__ == "__main__":
    signal.alarm(300)
    torch.set_num_threads(1)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="speech_"))
    paths = [record(folder, number, 6) for number in range(8)]
    ring = BlockRing()
    threading.Thread(target=reader, args=(ring, paths, 9), name="reader", daemon=True).start()
    time.sleep(0.5)
    model = Denoiser()
    optimizer = torch.optim.NAdam(model.parameters(), lr=1e-3)
    step = 0
    while True:
        clean = torch.from_numpy(np.stack([ring.take() for _ in range(4)])).unsqueeze(1)
        for _ in range(6):  # several noise draws for each group of blocks
            loss = nn.functional.l1_loss(model(clean + 0.1 * torch.randn_like(clean)), clean)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        step += 1
        time.sleep(0.03)
        if step % 40 == 0:
            print(f"step {step} l1 {loss.item():.4f} backlog {ring.written - ring.read}", flush=True)
