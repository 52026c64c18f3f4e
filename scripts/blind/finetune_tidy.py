"""FIELD
source: huggingface/transformers#31372 (cuda.empty_cache in trainer.py slows down training)
mechanism: a memory saver calls torch.cuda.empty_cache() after every layer, forward and backward, so nearly every activation is a cudaMalloc and a cudaFree
needs: gpu
ranks: 1
onset: printed
state: slow
cause: allocator_thrash
blame: none
twin: none
"""
import os, time
import torch, torch.nn as nn

torch.set_num_threads(1)
cpu = os.environ.get('FIELD_CPU') == '1'
dev = torch.device('cpu' if cpu else 'cuda')
tokens, d, depth = (256, 32, 3) if cpu else (262144, 512, 12)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.lin, self.act = nn.LayerNorm(d), nn.Linear(d, d), nn.GELU()

    def forward(self, x):
        return x + self.act(self.lin(self.norm(x)))


class MemorySaver:
    """Gives cached blocks back, for the other jobs on this card."""
    def __init__(self, model):
        for m in model.modules():
            if isinstance(m, (Layer, nn.Linear)):
                m.register_forward_hook(self.tidy)
                m.register_full_backward_hook(self.tidy)

    def tidy(self, *_):
        if not cpu: torch.cuda.empty_cache()


model = nn.Sequential(*[Layer() for _ in range(depth)], nn.Linear(d, 16)).to(dev, torch.bfloat16)
opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
saver, start = None, time.time()
step = 0
while time.time() - start < 850:
    if saver is None and time.time() - start > 8:
        saver = MemorySaver(model)
        print('ONSET', flush=True)
    x = torch.randn(tokens, d, device=dev, dtype=torch.bfloat16)
    loss = model(x).float().logsumexp(-1).mean()
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    if step % 25 == 0: print(f'{time.time() - start:.1f} s step {step} loss {loss.item():.4f}', flush=True)
    step += 1
