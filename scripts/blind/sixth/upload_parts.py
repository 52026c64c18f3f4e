"""FIELD
source: aws/aws-sdk-java#391 (the parts of an upload go to the same thread pool as the upload that waits for them)
mechanism: log_file() runs in a pool of two threads and hands its parts to that same pool; two files at once fill the pool
    with uploads that wait for parts that no thread is left to send; the trainer waits for both files
needs: none
ranks: 1
onset: printed
state: hung
cause: deadlocked_locks
blame: main
twin: none
"""

import hashlib
import io
import pathlib
import signal
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, wait

import torch

PART = 256 * 1024


class ArtifactLog:
    def __init__(self, root: pathlib.Path):
        self.root = root
        self.pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="artifact")
        self.open = []

    def log_file(self, name: str, payload: bytes):
        self.open.append(self.pool.submit(self._send_file, name, payload))

    def flush(self):
        done, _ = wait(self.open)
        self.open.clear()
        return [item.result() for item in done]

    def _send_file(self, name, payload):
        digest = payload
        for _ in range(60):
            digest = hashlib.sha256(digest + payload).digest()
        parts = [
            self.pool.submit(self._send_part, f"{name}.{digest.hex()[:8]}.{number}", payload[at : at + PART])
            for number, at in enumerate(range(0, len(payload), PART))
        ]
        return name, sum(part.result() for part in parts)

    def _send_part(self, key, data):
        time.sleep(0.02)
        return (self.root / key).write_bytes(data)


def frozen(thing) -> bytes:
    buffer = io.BytesIO()
    torch.save(thing, buffer)
    return buffer.getvalue()


class Autoencoder(torch.nn.Module):
    def __init__(self, width: int = 784, code: int = 48):
        super().__init__()
        self.down = torch.nn.Linear(width, 512)
        self.code = torch.nn.Linear(512, code)
        self.up = torch.nn.Linear(code, 512)
        self.out = torch.nn.Linear(512, width)

    def forward(self, x):
        return self.out(torch.relu(self.up(self.code(torch.relu(self.down(x))))))


def train(log: ArtifactLog):
    model = Autoencoder()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    began = saved = time.monotonic()
    step = 0
    while True:
        x = torch.rand(64, 784)
        loss = torch.nn.functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if time.monotonic() - saved > 4:
            log.log_file(f"weights-{step}", frozen(model.state_dict()))
            if time.monotonic() - began > 17:
                print("milestone: the optimizer is kept as well")
                print("ONSET", flush=True)
                log.log_file(f"moments-{step}", frozen(optimizer.state_dict()))
            for name, size in log.flush():
                print(f"step {step} loss {loss.item():.4f}: {name}, {size} bytes", flush=True)
            saved = time.monotonic()


if __name__ == "__main__":
    signal.alarm(300)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        train(ArtifactLog(pathlib.Path(folder)))
