"""FIELD
source: https://github.com/python/cpython/issues/125037 and https://github.com/psf/requests/issues/2925 (a module starts a thread at import, the thread imports the same module)
mechanism: the body of an imported plugin maps a function over a thread pool, the threads import the plugin and wait for its import lock, which the importing thread holds while it waits for them
needs: cpu
ranks: 1
onset: printed
state: hung
cause: deadlocked_locks
blame: load_plugin (aug_plugin_loader.py)
twin: none
"""
import importlib
import os
import sys
import tempfile

import torch
import torch.nn as nn

PLUGIN = '''
from concurrent.futures import ThreadPoolExecutor

import torch

SIZES = (3, 5, 7, 9)


def blur_kernel(size):
    from spectral_aug import SIZES
    x = torch.arange(size) - size // 2
    return torch.exp(-(x * x) / (2.0 * SIZES.index(size) + 1)).div(size)


with ThreadPoolExecutor(2) as pool:
    KERNELS = list(pool.map(blur_kernel, SIZES))


def augment(x):
    k = KERNELS[int(torch.randint(0, len(KERNELS), ()))]
    return torch.nn.functional.conv1d(x.unsqueeze(1), k.view(1, 1, -1), padding=len(k) // 2).squeeze(1)
'''


def load_plugin(name):
    return importlib.import_module(name).augment


def main():
    torch.set_num_threads(1)
    plugins = tempfile.mkdtemp(prefix="plugins_")
    with open(os.path.join(plugins, "spectral_aug.py"), "w") as f:
        f.write(PLUGIN)
    sys.path.insert(0, plugins)
    model = nn.Sequential(nn.Linear(200, 800), nn.ReLU(), nn.Linear(800, 200))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    augment = None
    for epoch in range(10):
        if epoch == 4:
            print("ONSET", flush=True)
            augment = load_plugin("spectral_aug")
        for step in range(500):
            x = torch.randn(96, 200)
            seen = augment(x) if augment else x
            loss = (model(seen) - x).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        print("epoch", epoch, "loss", loss.item(), flush=True)


if __name__ == "__main__":
    main()
