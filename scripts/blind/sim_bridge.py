"""FIELD
source: https://github.com/equinor/ert/pull/3450 and https://github.com/pybind/pybind11/issues/1273 (native code waits for another thread without releasing the GIL)
mechanism: a native call made with the GIL held waits on a semaphore that a Python thread would post; that thread can never run
needs: cpu
ranks: 1
onset: printed
state: hung
cause: held_gil
blame: next_batch (sim_bridge.py)
twin: none
"""
import collections
import ctypes
import threading

import numpy as np
import torch
import torch.nn as nn

native = ctypes.PyDLL(None)                        # bound like an extension module, without a release of the GIL


class Bridge:
    """Hands simulated batches from a producer thread to the trainer."""

    def __init__(self, dim):
        self.dim = dim
        self.ready = ctypes.create_string_buffer(64)
        native.sem_init(self.ready, 0, 0)
        self.room = threading.Semaphore(8)
        self.out = collections.deque()
        self.rounds = 20
        threading.Thread(target=self._simulate, daemon=True, name="simulator").start()

    def _simulate(self):
        rng = np.random.default_rng(0)
        while True:
            self.room.acquire()
            state = rng.standard_normal((64, self.dim)).astype(np.float32)
            for _ in range(self.rounds):
                state = np.tanh(state + 0.1 * np.roll(state, 1, axis=1))
            self.out.append(state)
            native.sem_post(self.ready)

    def next_batch(self):
        native.sem_wait(self.ready)
        self.room.release()
        return torch.from_numpy(self.out.popleft())


def main():
    torch.set_num_threads(1)
    bridge = Bridge(256)
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    threading.Event().wait(1.0)                    # let the simulator fill its buffer
    for step in range(50000):
        if step == 1200:
            print("ONSET", flush=True)
            bridge.rounds = 400                    # finer time steps for the second half
        x = bridge.next_batch()
        loss = (model(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 300 == 0:
            print("step", step, "loss", loss.item(), flush=True)


if __name__ == "__main__":
    main()
