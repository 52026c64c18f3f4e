"""Before the first step: a code base with thousands of generated modules is imported."""

import importlib
import sys

import stage
import surroundings
import torch

MODULES = 6000
SOURCE = "\n".join(f"def operator_{i}(a, b={i}):\n    return [a + b * k for k in range({i} % 7)]" for i in range(600))

if __name__ == "__main__":
    args = stage.arguments(__doc__)
    torch.set_num_threads(1)
    sys.dont_write_bytecode = True
    code = surroundings.scratch_folder()
    sys.path.insert(0, str(code))
    (code / "registry.py").write_text(SOURCE)
    for number in range(MODULES):
        (code / f"ops_{number}.py").symlink_to("registry.py")
    importlib.invalidate_caches()
    stage.onset()
    for number in range(MODULES):
        importlib.import_module(f"ops_{number}")
    layer = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    while True:
        layer(torch.randn(4096, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
