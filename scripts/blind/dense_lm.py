"""FIELD
source: own
mechanism: a dense language model in bfloat16 with large products and flash attention, fed by two workers through pinned memory; the card is busy with matrix products all the time
needs: gpu
ranks: 1
onset: printed
state: healthy
cause: gpu_bound, balanced
blame: none
twin: none
"""
import os, time
import numpy as np
import torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
cpu = os.environ.get('FIELD_CPU') == '1'
dev = torch.device('cpu' if cpu else 'cuda')
d, heads, depth, vocab, seq, batch = (32, 2, 2, 128, 32, 2) if cpu else (4096, 32, 8, 8192, 2048, 8)


class Tokens(Dataset):
    def __init__(self):
        self.data = np.random.default_rng(0).integers(0, vocab, 20_000_000, dtype=np.uint16)

    def __len__(self):
        return 10**7

    def __getitem__(self, i):
        at = (i * 7919) % (len(self.data) - seq - 1)
        row = torch.from_numpy(self.data[at:at + seq + 1].astype(np.int64))
        return row[:-1], row[1:]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.up, self.down = nn.Linear(d, 4 * d, bias=False), nn.Linear(4 * d, d, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, heads, d // heads).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.n2(x)), approximate='tanh'))


def main():
    with dev:
        model = nn.Sequential(nn.Embedding(vocab, d), *[Block() for _ in range(depth)], nn.LayerNorm(d), nn.Linear(d, vocab, bias=False)).to(torch.bfloat16)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=not cpu)
    loader = DataLoader(Tokens(), batch, num_workers=2, pin_memory=not cpu, prefetch_factor=4)
    start, told = time.time(), False
    for step, (x, y) in enumerate(loader):
        x, y = x.to(dev, non_blocking=True), y.to(dev, non_blocking=True)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        opt.zero_grad(set_to_none=True); loss.backward(); opt.step()
        if step % 20 == 0: print(f'step {step} loss {loss.item():.3f}', flush=True)
        if not told and time.time() - start > 12: told = True; print('ONSET', flush=True)
        if time.time() - start > 850: break


if __name__ == '__main__':
    main()
