"""FIELD
source: https://github.com/huggingface/transformers/issues/31372 (torch.cuda.empty_cache in the training loop slows it down)
mechanism: torch.cuda.empty_cache() after every step gives all cached blocks back to the driver, and the next step allocates hundreds of them anew
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
ROWS, WIDTH, DEPTH = (32, 64, 4) if cpu else (5632, 1024, 96)

class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    def forward(self, x):
        return x + self.down(torch.nn.functional.silu(self.up(self.norm(x))))

def release_unused():
    if not cpu:
        torch.cuda.empty_cache()

def main():
    torch.manual_seed(0)
    model = nn.Sequential(*[Mixer() for _ in range(DEPTH)]).to(dev, torch.bfloat16)
    opt = torch.optim.SGD(model.parameters(), lr=1e-4)
    begun, polite, marked = time.time(), False, time.time()
    for step in range(10**9):
        x = torch.randn(ROWS, WIDTH, device=dev, dtype=torch.bfloat16)
        loss = (model(x) - x.roll(1, 0)).float().pow(2).mean()
        loss.backward()
        opt.step(); opt.zero_grad(set_to_none=True)
        del x
        if polite:
            release_unused()                      # others share this card
        if step % 50 == 0:
            print(f'step {step} loss {loss.item():.4f} {(time.time() - marked) * 20:.1f} ms a step', flush=True)
            marked = time.time()
        if not polite and time.time() - begun > 10:
            polite = True
            print('ONSET', flush=True)
        if time.time() - begun > 700:
            break

if __name__ == '__main__':
    main()
