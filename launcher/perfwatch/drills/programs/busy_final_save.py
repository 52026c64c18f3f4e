"""Look-alike of a hang at exit: an atexit handler writes the final model for five minutes, slowly and steadily."""

import atexit
import tempfile
import time

import stage
import torch


class SlowDisk:
    def __init__(self, file):
        self.file = file

    def write(self, chunk):
        data = bytes(chunk)
        for i in range(0, len(data), 65_536):
            self.file.write(data[i : i + 65_536])
            self.file.flush()
            time.sleep(0.3)
        return len(data)

    def flush(self):
        self.file.flush()


def save_final(model):
    stage.onset()
    with tempfile.TemporaryFile() as file:
        torch.save(model.state_dict(), SlowDisk(file))


torch.set_num_threads(1)
steps = stage.arguments().steps
giant = torch.nn.Linear(4096, 4096)
atexit.register(save_final, giant)
optimizer = torch.optim.SGD(giant.parameters(), lr=0.01)
for _ in range(steps):
    optimizer.zero_grad()
    giant(torch.randn(4, 4096)).mean().backward()
    optimizer.step()
