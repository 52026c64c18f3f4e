"""FIELD
source: https://github.com/pytorch/pytorch/issues/12461 (indexing with a mask on the GPU synchronises)
mechanism: the loss loops over the images of the batch and picks the positive anchors of each by a boolean mask, so that the host waits for the card hundreds of times in each step while the card runs dry
needs: gpu
ranks: 1
onset: printed
state: slow
cause: synchronising, host_bound_python
blame: per_image_loss (mask_loss.py)
twin: none
"""
import os, time
import torch, torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
cpu = os.environ.get('FIELD_CPU') == '1'
dev = torch.device('cpu' if cpu else 'cuda')
IMAGES, ANCHORS, WIDTH = (8, 64, 32) if cpu else (192, 512, 256)

def dense_loss(scores, boxes, targets, positive):
    weight = positive.float()
    location = (F.smooth_l1_loss(boxes, targets, reduction='none').sum(-1) * weight).sum() / weight.sum().clamp(min=1)
    return location + F.binary_cross_entropy_with_logits(scores, weight)

def per_image_loss(scores, boxes, targets, positive):
    total = scores.new_zeros(())
    for score, box, target, mask in zip(scores, boxes, targets, positive):
        picked, wanted = box[mask], target[mask]
        if len(picked):
            total = total + F.smooth_l1_loss(picked, wanted)
        background = score[~mask]
        worst = background.topk(min(3 * len(picked) + 1, len(background))).values
        total = total + F.softplus(worst).mean() + F.softplus(-score[mask]).sum() / max(len(picked), 1)
    return total / len(scores)

class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU())
        self.score, self.box = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, 4)
    def forward(self, x):
        h = self.trunk(x)
        return self.score(h).squeeze(-1), self.box(h)

def main():
    model = Head().to(dev)
    opt = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    begun, mining = time.time(), False
    for step in range(10**9):
        features = torch.randn(IMAGES, ANCHORS, WIDTH, device=dev)
        positive = features[..., 0] > 1.3
        scores, boxes = model(features)
        loss = (per_image_loss if mining else dense_loss)(scores, boxes, features[..., 1:5], positive)
        opt.zero_grad(); loss.backward(); opt.step()
        if step % 50 == 0: print(f'{time.time() - begun:.0f} s step {step} loss {loss.item():.4f}', flush=True)
        if not mining and time.time() - begun > 9:
            mining = True                         # hard negatives from here on
            print('ONSET', flush=True)
        if time.time() - begun > 700: break

if __name__ == '__main__':
    main()
