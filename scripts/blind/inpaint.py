"""FIELD
source: own
mechanism: every step copies some 400 MB of frames from ordinary (pageable) memory to the card and the reconstruction back again, both synchronously; the model itself needs a few milliseconds
needs: gpu
ranks: 1
onset: printed
state: slow
cause: copy_bound
blame: none
twin: none
"""
import os, time
import torch, torch.nn as nn

torch.set_num_threads(1)
cpu = os.environ.get('FIELD_CPU') == '1'
dev = torch.device('cpu' if cpu else 'cuda')
frames, size, patch, d = (32, 32, 8, 32) if cpu else (1280, 224, 16, 768)
batch = frames // 2


class Inpainter(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Conv2d(3, d, patch, patch)
        self.mix = nn.Sequential(nn.Conv2d(d, d, 1), nn.GELU(), nn.Conv2d(d, d, 1), nn.GELU())
        self.dec = nn.ConvTranspose2d(d, 3, patch, patch)

    def forward(self, x):
        return self.dec(self.mix(self.enc(x)))


video = torch.empty(frames, 3, size, size).uniform_()          # the clip, in memory
repaired = torch.zeros_like(video[:batch])
model = Inpainter().to(dev)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
start, told, step = time.time(), False, 0
while time.time() - start < 850:
    part = video[batch * (step % 2):batch * (step % 2) + batch]
    x = part.to(dev)
    with torch.autocast(dev.type, torch.bfloat16):
        y = model(x)
    loss = (y.float() - x).abs().mean()
    opt.zero_grad(); loss.backward(); opt.step()
    repaired.copy_(y.detach())
    if step % 20 == 0: print(f'step {step} loss {loss.item():.4f} first pixel {repaired[0, 0, 0, 0].item():.3f}', flush=True)
    if time.time() - start > 10 and not told:
        told = True
        print('ONSET', flush=True)
    step += 1
