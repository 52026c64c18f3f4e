"""FIELD
source: https://github.com/pytorch/pytorch/issues/3929 (optimizers are terribly slow with large sets of small parameters; 100 ms against 1 ms)
mechanism: four thousand small parameters are updated one after the other (Adam with foreach=False): tens of thousands of tiny kernels a step, and the host cannot launch them fast enough
needs: gpu
ranks: 1
onset: printed
state: slow
cause: host_bound_python
blame: none
twin: none
"""
import os, time
import torch, torch.nn as nn

torch.set_num_threads(1)
cpu = os.environ.get('FIELD_CPU') == '1'
dev = torch.device('cpu' if cpu else 'cuda')
SITES, WIDTH = (200, 16) if cpu else (4000, 64)

class SiteModel(nn.Module):
    """One shared trunk, and scale and shift of its own for each site."""
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(WIDTH, 1024), nn.GELU(), nn.Linear(1024, WIDTH))
        self.scale = nn.ParameterList(nn.Parameter(torch.ones(WIDTH)) for _ in range(SITES // 2))
        self.shift = nn.ParameterList(nn.Parameter(torch.zeros(WIDTH)) for _ in range(SITES // 2))
    def forward(self, x):                          # sites x samples x width
        scale, shift = torch.stack(list(self.scale)), torch.stack(list(self.shift))
        return self.trunk(x) * scale.unsqueeze(1) + shift.unsqueeze(1)

def main():
    torch.manual_seed(0)
    model = SiteModel().to(dev)
    offsets = torch.randn(SITES // 2, 1, WIDTH, device=dev)
    opt = torch.optim.SGD(model.parameters(), lr=0.05, foreach=True)
    begun, second = time.time(), False
    for step in range(10**9):
        x = torch.randn(SITES // 2, 16, WIDTH, device=dev)
        loss = (model(x) - x - offsets).pow(2).mean()
        opt.zero_grad(set_to_none=True); loss.backward(); opt.step()
        if step % 40 == 0: print(f'{time.time() - begun:.0f} s step {step} loss {loss.item():.5f}', flush=True)
        if not second and time.time() - begun > 9:
            second = True
            opt = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=False, fused=False)
            print('ONSET', flush=True)
        if time.time() - begun > 700: break

if __name__ == '__main__':
    main()
