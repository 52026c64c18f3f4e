"""FIELD
source: own
mechanism: attention is written by hand (scores, bias, mask, softmax, dropout), so every layer writes and reads batch x heads x 4096 x 4096 scores several times
needs: gpu
ranks: 1
onset: printed
state: slow
cause: slow_attention_fallback, memory_bound_gpu
blame: none
twin: none
"""
import math, os, time
import torch, torch.nn as nn, torch.nn.functional as F

torch.set_num_threads(1)
cpu = os.environ.get('FIELD_CPU') == '1'
dev = torch.device('cpu' if cpu else 'cuda')
seq, batch, d, heads, depth, vocab = (64, 1, 32, 2, 2, 100) if cpu else (4096, 2, 1024, 16, 4, 8192)


def relative_bias(table, n):
    near = (torch.arange(n, device=dev)[:, None] - torch.arange(n, device=dev)[None]).clamp(0, table.shape[0] - 1)
    return table[near].permute(2, 0, 1)


class SelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.register_buffer('table', torch.linspace(0, -4, 256)[:, None].repeat(1, heads))

    def forward(self, x, keep):
        b, n, _ = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, heads, d // heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / math.sqrt(d // heads)
        scores = scores + relative_bias(self.table, n)
        scores = scores.masked_fill(~keep, float('-inf'))
        weights = F.dropout(scores.softmax(-1), 0.1, self.training)
        return self.out((weights @ v).transpose(1, 2).reshape(b, n, d))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.att = nn.ModuleList(SelfAttention() for _ in range(depth))
        self.ff = nn.ModuleList(nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d)) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(depth))

    def forward(self, ids):
        x = self.emb(ids)
        keep = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool, device=ids.device).tril()
        for norm, att, ff in zip(self.norms, self.att, self.ff):
            x = x + att(norm(x), keep)
            x = x + ff(x)
        return x @ self.emb.weight.t()


model = Decoder().to(dev)
opt = torch.optim.AdamW(model.parameters(), lr=2e-4)
corpus = torch.randint(0, vocab, (1 << 20,), device=dev)
begin, told, step = time.time(), False, 0
while (now := time.time() - begin) < 850:
    at = torch.randint(0, len(corpus) - seq - 1, (batch,)).tolist()
    ids = torch.stack([corpus[a:a + seq + 1] for a in at])
    with torch.autocast(dev.type, torch.bfloat16):
        logits = model(ids[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
    opt.zero_grad(set_to_none=True); loss.backward(); opt.step()
    if step % 20 == 0: print(f'{step} {loss.item():.3f}', flush=True)
    if now > 10 and not told: told = True; print('ONSET', flush=True)
    step += 1
