"""FIELD
source: own
mechanism: between two phases of training the features of many layers are whitened on the CPU: covariance and eigenvectors in numpy, one core, some five minutes in all
needs: gpu
ranks: 1
onset: printed
state: busy
cause: computing_on_host
blame: fit_whitening (whitening.py)
twin: none
"""
import os, time
os.environ.setdefault('OMP_NUM_THREADS', '1')
os.environ.setdefault('OPENBLAS_NUM_THREADS', '1')
os.environ.setdefault('MKL_NUM_THREADS', '1')
import numpy as np
import torch, torch.nn as nn

torch.set_num_threads(1)
cpu = os.environ.get('FIELD_CPU') == '1'
dev = torch.device('cpu' if cpu else 'cuda:0')
width, rows, budget = (64, 200, 5) if cpu else (2048, 6000, 330)


def fit_whitening(seconds):
    """One transform for each group of features, until the planned time is used."""
    rng, began, done = np.random.default_rng(0), time.time(), []
    while time.time() - began < seconds:
        features = rng.standard_normal((rows, width))
        features -= features.mean(0)
        values, vectors = np.linalg.eigh(features.T @ features / rows)
        done.append(values)
        transform = (vectors / np.sqrt(values + 1e-3)) @ vectors.T
        if len(done) % 10 == 0: print(f'{len(done)} groups whitened', flush=True)
    return torch.from_numpy(transform).float()


def run(net, opt, transform, seconds):
    began, step = time.time(), 0
    while time.time() - began < seconds:
        x = torch.randn(8192, width, device=dev)
        if transform is not None: x = x @ transform
        with torch.autocast(dev.type, torch.bfloat16):
            loss = (net(x) - x).square().mean()
        opt.zero_grad(); loss.backward(); opt.step()
        if step % 100 == 0: print(f'step {step} loss {loss.item():.4f}', flush=True)
        step += 1


net = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)).to(dev)
opt = torch.optim.AdamW(net.parameters(), lr=1e-4)
run(net, opt, None, 8)
print('features collected, whitening them now\nONSET', flush=True)
transform = fit_whitening(budget).to(dev)
run(net, opt, transform, 5 if cpu else 400)
