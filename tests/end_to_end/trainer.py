"""A training loop without torch: cheap to start, yet it looks like one from outside.

``trainer.py FOLDER [WORKERS]``: FOLDER holds a package named torch (see conftest) and a file libtorch_cpu.so, which is
mapped. Prints its pid and those of its workers, then obeys one letter at a time on stdin:
s: print how many steps were made; h: hang in its own code; d: wait in the kernel, state D; x: raise; end of input: end.
"""

import ctypes
import importlib
import mmap
import os
import select
import signal
import sys
import time


def worker() -> None:
    """Like a DataLoader worker without work."""
    with open("/proc/self/comm", "w") as name:
        name.write("pt_data_worker")
    os.close(0)
    while os.getppid() != 1:
        time.sleep(0.5)
    os._exit(0)


def hang() -> None:
    """Sleep for days."""
    time.sleep(1e6)


def wait_in_the_kernel() -> None:
    """A parent is in state D until a child made with CLONE_VFORK executes something; this one never does."""
    libc = ctypes.CDLL(None)
    stack = ctypes.create_string_buffer(1 << 16)
    top = ctypes.c_void_p(ctypes.addressof(stack) + (1 << 16) - 64)
    libc.clone(ctypes.cast(libc.pause, ctypes.c_void_p), top, 0x4000 | signal.SIGCHLD, None)


def main(folder: str, workers: int) -> None:
    """Train until told otherwise."""
    with open(f"{folder}/libtorch_cpu.so", "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    sys.path.insert(0, folder)
    # The package beside the library: a few lines of Python.
    autograd, optim = importlib.import_module("torch.autograd"), importlib.import_module("torch.optim")

    pids = []
    for _ in range(workers):
        pids.append(os.fork())
        if pids[-1] == 0:
            worker()
    print(os.getpid(), *pids, flush=True)
    step = 0
    while mapped:
        autograd.backward()
        optim.step()
        step += 1
        if not select.select([0], [], [], 0)[0]:
            continue
        letter = os.read(0, 1)
        if letter == b"s":
            print(step, flush=True)
        elif letter == b"h":
            print("hangs", flush=True)
            hang()
        elif letter == b"d":
            print("waits", flush=True)
            wait_in_the_kernel()
        elif letter == b"x":
            raise RuntimeError("as asked")
        else:
            break
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0)
