"""A small GPT over two ranks; NVIDIA's fault injector, loaded from where it was fetched, strikes rank 1.

torchrun --nproc-per-node 2 nano.py INJECT_FAULT.PY FAULT SECONDS
"""

import importlib.util
import logging
import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

CARD = torch.cuda.is_available()
WIDTH, LAYERS, HEADS, WORDS, LENGTH, BATCH = (768, 12, 12, 50304, 1024, 12) if CARD else (64, 2, 2, 128, 32, 4)


class Block(nn.Module):
    """Attention and a perceptron, as in nanoGPT."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.projection = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """[batch, length, width] to the same."""
        batch, length, _ = x.shape
        q, k, v = (
            one.view(batch, length, HEADS, -1).transpose(1, 2) for one in self.attention(self.ln_1(x)).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(y.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """Tokens to a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.h, self.ln_f = nn.Sequential(*(Block() for _ in range(LAYERS))), nn.LayerNorm(WIDTH)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Both [batch, length]."""
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        return F.cross_entropy((self.ln_f(self.h(x)) @ self.wte.weight.T).flatten(0, 1), targets.flatten())


def main() -> None:
    """Train; after some steps ask the injector for its fault in so many seconds. ONSET is printed when it strikes."""
    path, fault, delay = sys.argv[1], sys.argv[2], float(sys.argv[3])
    logging.basicConfig(level=logging.INFO)
    found = importlib.util.spec_from_file_location("inject_fault", path)
    assert found is not None
    assert found.loader is not None
    injector = importlib.util.module_from_spec(found)
    found.loader.exec_module(injector)
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local) if CARD else torch.device("cpu")
    if CARD:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    dist.init_process_group("nccl" if CARD else "gloo", timeout=timedelta(minutes=30))
    torch.manual_seed(1337 + rank)
    model = DistributedDataParallel(GPT().to(device), device_ids=[local] if CARD else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, fused=CARD)
    data = torch.randint(WORDS, (1 << 20,), dtype=torch.int32)
    began, armed, step = time.monotonic(), False, 0
    while time.monotonic() - began < 600:
        starts = torch.randint(len(data) - LENGTH, (BATCH,)).tolist()
        tokens = torch.stack([data[at : at + LENGTH].long() for at in starts]).to(device)
        targets = torch.stack([data[at + 1 : at + 1 + LENGTH].long() for at in starts]).to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=CARD):
            loss = model(tokens, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        injector.maybe_raise_workload_exception()
        step += 1
        if step % 10 == 0 and rank == 0:
            print(f"iter {step}: loss {loss.item():.4f}", flush=True)
        if step == 20 and not armed:
            armed = True
            if rank == 0:
                os.write(1, b"READY\n")
            injector.inject_fault((injector.Fault[fault],), 1, 1, delay, 1, lambda: os.write(1, b"\nONSET\n"))


if __name__ == "__main__":
    main()
