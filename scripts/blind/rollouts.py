"""FIELD
source: huggingface/transformers#43089 (generation overhead: several GPU syncs per token and dispatch overhead)
mechanism: every update first samples answers token by token with a small model and batch; Python launches hundreds of tiny kernels per token and asks after each token whether all answers have ended
needs: gpu
ranks: 1
onset: printed
state: slow
cause: host_bound_python, synchronising
blame: none
twin: none
"""
import os, time
import torch, torch.nn as nn, torch.nn.functional as F

torch.set_num_threads(1)
cpu = os.environ.get('FIELD_CPU') == '1'
dev = torch.device('cpu' if cpu else 'cuda')
d, heads, depth, vocab, batch, length = (32, 2, 2, 128, 2, 8) if cpu else (512, 8, 12, 8192, 4, 96)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x, cache=None):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, heads, d // heads).permute(2, 0, 3, 1, 4)
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.n2(x)))), (k, v)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.pos, self.norm = nn.Embedding(vocab, d), nn.Embedding(512, d), nn.LayerNorm(d)
        self.blocks = nn.ModuleList(Block() for _ in range(depth))

    def forward(self, ids, caches=None):
        start = caches[0][0].shape[2] if caches else 0
        x = self.emb(ids) + self.pos(torch.arange(start, start + ids.shape[1], device=ids.device))
        new = []
        for i, block in enumerate(self.blocks):
            x, c = block(x, caches[i] if caches else None)
            new.append(c)
        return F.linear(self.norm(x), self.emb.weight), new


@torch.no_grad()
def sample(policy, prompt):
    ids, caches, done = prompt, None, torch.zeros(batch, dtype=torch.bool, device=dev)
    for _ in range(length):
        logits, caches = policy(ids if caches is None else ids[:, -1:], caches)
        logits = logits[:, -1] / 0.9
        top = logits.topk(50).values[:, -1:]
        logits = logits.masked_fill(logits < top, float('-inf'))
        token = torch.multinomial(logits.softmax(-1), 1)
        ids = torch.cat([ids, token], 1)
        done |= token[:, 0] == 0
        if done.all().item(): break
    return ids


policy = Policy().to(dev)
opt = torch.optim.AdamW(policy.parameters(), lr=1e-5)
start, told = time.time(), False
for step in range(10**9):
    prompt = torch.randint(1, vocab, (batch, 16), device=dev)
    ids = sample(policy, prompt)
    reward = (ids[:, 16:] % 7 == 0).float().mean(1)
    logits, _ = policy(ids[:, :-1])
    logp = -F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction='none').mean(1)
    loss = -((reward - reward.mean()) * logp).mean()
    opt.zero_grad(); loss.backward(); opt.step()
    if step % 10 == 0: print(f'update {step} reward {reward.mean().item():.3f} after {time.time() - start:.0f} s', flush=True)
    if not told and time.time() - start > 10:
        told = True
        print('ONSET', flush=True)
    if time.time() - start > 860: break
