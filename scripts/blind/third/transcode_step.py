"""FIELD
source: own
mechanism: subprocess.run starts an external converter that computes for two minutes and a half before the next phase of training; its output goes to a file
needs: none
ranks: 1
onset: printed
state: busy
cause: waiting_on_work
blame: none
twin: clip_encode
"""
import signal
import subprocess
import sys
import tempfile

import torch

signal.alarm(300)
torch.set_num_threads(1)
CONVERTER = """
import signal, sys, time, zlib
signal.alarm(300)
end = time.monotonic() + float(sys.argv[1])
block, n = bytes(range(256)) * 4096, 0
while time.monotonic() < end:
    block = zlib.compress(block * 2, 9)[:256] * 4096
    n += 1
print(n)
"""


class Phase:
    def __init__(self, name, steps, width):
        self.name, self.steps = name, steps
        self.model = torch.nn.Conv1d(8, width, 9, padding=4)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def run(self):
        for step in range(self.steps):
            wave = torch.randn(32, 8, 512)
            loss = self.model(wave).mean(1).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if step % 50 == 0:
                print(self.name, step, loss.item(), flush=True)


def convert(seconds):
    with tempfile.TemporaryFile() as output:
        subprocess.run([sys.executable, "-c", CONVERTER, str(seconds)], stdout=output, check=True)


Phase("clean", 700, 16).run()
print("ONSET", flush=True)
convert(150)
Phase("noisy", 10**6, 32).run()
