"""FIELD
source: https://github.com/dgrauet/ltx-2-mlx/issues/92
mechanism: sample clips are piped into an external encoder whose stderr is a pipe that nobody reads; when it warns once per frame it blocks in its own write, and the trainer waits for it to end
needs: none
ranks: 1
onset: printed
state: hung
cause: blocked_pipe, blocked_child
blame: decode_and_stream (waits), <module> (of the encoder: writes to a full stderr)
twin: none
"""
import signal
import subprocess
import sys

import torch

signal.alarm(300)
torch.set_num_threads(1)
ENCODER = """
import sys, signal
signal.alarm(300)
noisy = sys.argv[1] == "noisy"
frames = 0
while True:
    frame = sys.stdin.buffer.read(4096)
    if not frame:
        break
    frames += 1
    if noisy:
        sys.stderr.write("deprecated pixel format used, make sure you did set range correctly (frame %d)\\n" % frames)
"""


class Sampler:
    def __init__(self, generator):
        self.generator = generator

    def decode_and_stream(self, frames, noisy):
        command = [sys.executable, "-c", ENCODER, "noisy" if noisy else "quiet"]
        encoder = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        with torch.no_grad():
            for _ in range(frames):
                picture = (self.generator(torch.randn(1, 64)).sigmoid() * 255).byte()
                encoder.stdin.write(picture.numpy().tobytes()[:4096].ljust(4096, b"\0"))
        encoder.stdin.close()
        return encoder.wait()


def main():
    generator = torch.nn.Sequential(torch.nn.Linear(64, 1024), torch.nn.SiLU(), torch.nn.Linear(1024, 4096))
    optimizer = torch.optim.AdamW(generator.parameters(), lr=2e-4)
    sampler = Sampler(generator)
    for step in range(10**6):
        target = torch.rand(64, 4096)
        loss = (generator(torch.randn(64, 64)).sigmoid() - target).abs().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 40 == 20:
            sampler.decode_and_stream(24, noisy=False)
            print(f"step {step} {loss.item():.3f}", flush=True)
        if step == 120:
            print("ONSET", flush=True)
            sampler.decode_and_stream(2600, noisy=True)


main()
