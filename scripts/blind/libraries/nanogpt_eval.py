"""FIELD
source: karpathy/nanoGPT#179 and karpathy/nanoGPT#110 (iterations are far slower than expected; eval_iters of 200 over two splits at each
    evaluation interval)
mechanism: a loop in nanoGPT's style whose estimate_loss runs 400 batches for each of two splits after every ten iterations; nearly all of
    the time goes into evaluation, and each one takes minutes
needs: none
ranks: 1
onset: printed
state: busy, slow
cause: evaluating
blame: none
twin: nanogpt_train
"""

import math
import os
import signal
import tempfile
import time

signal.alarm(300)

import numpy as np
import torch
import torch.nn as nn
from torch.nn import functional as F

torch.set_num_threads(1)
data_dir = tempfile.mkdtemp()
np.random.randint(0, 65, 1_000_000).astype(np.uint16).tofile(os.path.join(data_dir, "train.bin"))
batch_size, block_size, n_layer, n_head, n_embd = 8, 64, 4, 4, 128
eval_interval, eval_iters, warmup_iters, lr_decay_iters = 10, 4000, 100, 5000


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = (one.view(B, T, n_head, C // n_head).transpose(1, 2) for one in self.c_attn(self.ln_1(x)).split(C, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, C)
        x = x + self.c_proj(y)
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(65, n_embd), nn.Embedding(block_size, n_embd)
        self.h, self.ln_f = nn.ModuleList(Block() for _ in range(n_layer)), nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, 65, bias=False)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1)))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return logits, F.cross_entropy(logits.view(-1, 65), targets.view(-1))


def get_batch():
    data = np.memmap(os.path.join(data_dir, "train.bin"), dtype=np.uint16, mode="r")
    ix = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([torch.from_numpy(data[i : i + block_size].astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + block_size].astype(np.int64)) for i in ix])
    return x, y


@torch.no_grad()
def estimate_loss():
    out = {}
    model.eval()
    for split in ("train", "val"):
        losses = torch.zeros(eval_iters)
        for k in range(eval_iters):
            X, Y = get_batch()
            logits, loss = model(X, Y)
            losses[k] = loss.item()
        out[split] = losses.mean()
    model.train()
    return out


def get_lr(it):
    if it < warmup_iters:
        return 1e-3 * (it + 1) / (warmup_iters + 1)
    ratio = min(1.0, (it - warmup_iters) / (lr_decay_iters - warmup_iters))
    return 1e-4 + 0.5 * (1.0 + math.cos(math.pi * ratio)) * 9e-4


model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99))
X, Y = get_batch()
t0, iter_num = time.time(), 0
while True:
    for group in optimizer.param_groups:
        group["lr"] = get_lr(iter_num)
    if iter_num % eval_interval == 0 and iter_num > 0:
        if iter_num == eval_interval:
            print("ONSET", flush=True)
        losses = estimate_loss()
        print(f"step {iter_num}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}", flush=True)
    logits, loss = model(X, Y)
    X, Y = get_batch()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    t1 = time.time()
    print(f"iter {iter_num}: loss {loss.item():.4f}, time {(t1 - t0) * 1000:.2f}ms", flush=True)
    t0 = t1
    iter_num += 1
