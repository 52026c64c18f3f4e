"""A program that looks like a calm training run from outside and costs next to nothing: ``measured_quiet.py FOLDER``.

FOLDER gets a file named libtorch_cpu.so, which is mapped, and a package named torch whose functions do next to nothing.
"""

import importlib
import mmap
import sys
import time
from pathlib import Path

TORCH = {
    "__init__.py": "",
    "autograd/__init__.py": "import time\n\n\ndef backward():\n    time.sleep(0.02)\n",
    "optim/__init__.py": "",
    "optim/optimizer.py": "import time\n\n\ndef step():\n    time.sleep(0.005)\n",
}


def prepare(folder: Path) -> None:
    """Write what the program maps and imports."""
    for name, text in TORCH.items():
        file = folder / "site-packages" / "torch" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (folder / "libtorch_cpu.so").write_bytes(bytes(4096))


def main() -> None:
    """Train until killed."""
    folder = Path(sys.argv[1])
    sys.path.insert(0, str(folder / "site-packages"))
    autograd, optimizer = (importlib.import_module(f"torch.{name}") for name in ("autograd", "optim.optimizer"))
    with (folder / "libtorch_cpu.so").open("rb") as library:
        mapped = mmap.mmap(library.fileno(), 0, access=mmap.ACCESS_READ)
    while mapped:
        autograd.backward()
        optimizer.step()
        time.sleep(0.001)


if __name__ == "__main__":
    main()
