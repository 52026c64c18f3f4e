"""FIELD
source: feldera/feldera#7162 (a slow blocking checkpoint: very many small files and an fsync for each of them)
mechanism: after some steps of a mixture of experts the trainer saves a checkpoint with one file per expert tensor
    and optimizer moment, each written, hashed, fsynced and renamed, then listed in a manifest; minutes in silence
needs: none
ranks: 1
onset: printed
state: busy
cause: checkpointing
blame: none
twin: none
"""
import hashlib
import json
import os
import pathlib
import queue
import signal
import tempfile
import threading
import time

import torch
from safetensors.torch import save
from torch import nn

EXPERTS, WIDTH, LAYERS = 256, 24, 6


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS)
        self.up = nn.ParameterList(nn.Parameter(torch.randn(WIDTH, WIDTH) * 0.1) for _ in range(EXPERTS))
        self.down = nn.ParameterList(nn.Parameter(torch.randn(WIDTH, WIDTH) * 0.1) for _ in range(EXPERTS))

    def forward(self, x):
        weight, chosen = self.gate(x.mean(0)).softmax(-1).topk(4)
        for w, e in zip(weight, chosen.tolist(), strict=True):
            x = x + w * torch.relu(x @ self.up[e]) @ self.down[e]
        return x


class MetricsWriter(threading.Thread):
    """Scalars go to a file from a thread of their own."""

    def __init__(self, path):
        super().__init__(daemon=True)
        self.rows, self.path = queue.Queue(), path

    def run(self):
        with open(self.path, "a") as out:
            while True:
                out.write(json.dumps(self.rows.get()) + "\n")
                out.flush()


class PerTensorCheckpointer:
    def __init__(self, root):
        self.root = pathlib.Path(root)

    def _durable(self, path, blob):
        tmp = path.with_suffix(".tmp")
        with open(tmp, "wb") as f:
            f.write(blob)
            f.flush()
            os.fsync(f.fileno())
        os.replace(tmp, path)
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)

    def _tensors(self, model, opt):
        for name, p in model.named_parameters():
            yield f"model/{name}", p.detach()
            state = opt.state.get(p, {})
            for key in ("exp_avg", "exp_avg_sq"):
                yield f"opt/{name}/{key}", state.get(key, torch.zeros_like(p))
            for tier in range(4):  # averaged copies for later soups
                yield f"ema{tier}/{name}", p.detach().clone()

    def save(self, step, model, opt):
        target = self.root / f"step_{step:07d}"
        manifest = {}
        for key, tensor in self._tensors(model, opt):
            path = target / (key + ".safetensors")
            path.parent.mkdir(parents=True, exist_ok=True)
            blob = save({"t": tensor.contiguous()})
            self._durable(path, blob)
            manifest[key] = {"sha256": hashlib.sha256(blob).hexdigest(), "shape": list(tensor.shape)}
            self._durable(target / "manifest.json", json.dumps(manifest).encode())
        return len(manifest)


def train():
    signal.alarm(300)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as root:
        metrics = MetricsWriter(os.path.join(root, "metrics.jsonl"))
        metrics.start()
        model = nn.Sequential(*[Experts() for _ in range(LAYERS)])
        opt = torch.optim.Adam(model.parameters(), 1e-3)
        saver = PerTensorCheckpointer(root)
        began, step = time.monotonic(), 0
        next_save = began + 9
        while step < 1_000_000:
            x = torch.randn(64, WIDTH)
            loss = (model(x) - x.roll(1, -1)).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            metrics.rows.put({"step": step, "loss": loss.item()})
            if step % 25 == 0:
                print(f"step {step} loss {loss.item():.4f}", flush=True)
            if time.monotonic() > next_save:
                print("ONSET", flush=True)
                print(f"saved {saver.save(step, model, opt)} tensors", flush=True)
                next_save = time.monotonic() + 3600


if __name__ == "__main__":
    train()
