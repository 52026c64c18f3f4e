"""FIELD
source: pytorch/pytorch#153195 (TF32 is disabled by default without warning)
mechanism: autocast to bfloat16 is on, but the transition blocks leave it "for stability" and multiply in float32 with TF32 off; these products take nearly all of the time
needs: gpu
ranks: 1
onset: printed
state: slow
cause: wrong_precision
blame: none
twin: none
"""
import os, time
import torch, torch.nn as nn, torch.nn.functional as F

torch.set_num_threads(1)
cpu = os.environ.get('FIELD_CPU') == '1'
dev = torch.device('cpu' if cpu else 'cuda')
side, batch, d, heads, depth = (16, 1, 32, 2, 2) if cpu else (512, 16, 1536, 12, 6)


class Attend(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, heads, -1).permute(2, 0, 3, 1, 4)
        return x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d))


class Transition(nn.Module):
    def __init__(self, factor=4):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.a, self.b, self.out = nn.Linear(d, factor * d), nn.Linear(d, factor * d), nn.Linear(factor * d, d)

    def forward(self, x):
        with torch.autocast(dev.type, enabled=False):
            h = self.norm(x.float())
            return x + self.out(F.silu(self.a(h)) * self.b(h))


net = nn.Sequential(*[m for _ in range(depth) for m in (Attend(), Transition())], nn.Linear(d, 64)).to(dev)
opt = torch.optim.Adam(net.parameters(), lr=1e-4)
start, told = time.time(), False
for step in range(10**9):
    x, y = torch.randn(batch, side, d, device=dev), torch.randint(0, 64, (batch, side), device=dev)
    with torch.autocast(dev.type, torch.bfloat16):
        logits = net(x)
    loss = F.cross_entropy(logits.float().flatten(0, 1), y.flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 10 == 0: print(f'step {step} loss {loss.item():.4f}', flush=True)
    if not told and time.time() - start > 10:
        told = True
        print('ONSET', flush=True)
    if time.time() - start > 850: break
