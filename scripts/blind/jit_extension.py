"""FIELD
source: https://github.com/pytorch/pytorch/issues/189245 and https://github.com/PASSIONLab/OpenEquivariance/issues/207 (stale FileBaton lock after a killed build)
mechanism: the process that built the extension was killed at its time limit and left its lock file; FileBaton.wait() of the training polls for the removal of a file that nobody will remove
needs: cpu
ranks: 1
onset: printed
state: hung
cause: waiting_for_file
blame: load_ops (jit_extension.py)
twin: none
"""
import os
import subprocess
import sys
import tempfile

import torch
import torch.nn as nn
from torch.utils.file_baton import FileBaton

BUILDER = r"""
import ast, sys
from torch.utils.file_baton import FileBaton
baton = FileBaton(sys.argv[1])
if baton.try_acquire():
    try:
        src = "def f(x):\n" + "".join("    x = (x * %d + 1) ^ (x >> 3)\n" % i for i in range(4000)) + "    return x\n"
        for arch in range(10000):
            code = compile(ast.parse(src), "op_%d" % arch, "exec")
        open(sys.argv[2], "w").write("ok")
    finally:
        baton.release()
"""


def prebuild(lock, target, limit=12):
    """Compile ahead of the first use, but do not let the build hold up the job."""
    proc = subprocess.Popen([sys.executable, "-c", BUILDER, lock, target])
    try:
        proc.wait(limit)
    except subprocess.TimeoutExpired:
        proc.kill()
        proc.wait()


def load_ops(build_dir):
    baton = FileBaton(os.path.join(build_dir, "lock"))
    if baton.try_acquire():
        try:
            return torch.nn.functional.gelu
        finally:
            baton.release()
    baton.wait()
    return torch.nn.functional.gelu


def train(model, opt, steps, act):
    for step in range(steps):
        x = torch.randn(128, 256)
        h = act(model[0](x))
        loss = (model[1](h) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


def main():
    torch.set_num_threads(1)
    build_dir = tempfile.mkdtemp(prefix="torch_extensions_")
    model = nn.Sequential(nn.Linear(256, 512), nn.Linear(512, 256))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    print("warmup", train(model, opt, 600, torch.relu), flush=True)
    prebuild(os.path.join(build_dir, "lock"), os.path.join(build_dir, "ops.so"))
    print("warmup", train(model, opt, 600, torch.relu), flush=True)
    print("ONSET", flush=True)
    act = load_ops(build_dir)
    print("finetune", train(model, opt, 5000, act), flush=True)


if __name__ == "__main__":
    main()
