"""FIELD
source: own (asynchronous checkpoints with a bandwidth limit for the shared file server, as several trainers have)
mechanism: the training thread awaits the future of the previous asynchronous save, whose thread writes at a limited rate for minutes
needs: cpu
ranks: 1
onset: printed
state: busy
cause: checkpointing, waiting_on_work
blame: none
twin: none
"""
import os
import pickle
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn as nn

torch.set_num_threads(1)


class AsyncCheckpointer:
    def __init__(self, folder, max_bytes_per_second):
        self.folder, self.rate = folder, max_bytes_per_second
        self.executor = ThreadPoolExecutor(1, thread_name_prefix="ckpt")
        self.pending = None

    def _write(self, name, state):
        blob = pickle.dumps({k: v.numpy() for k, v in state.items()}, protocol=4)
        path = os.path.join(self.folder, name)
        with open(path + ".tmp", "wb") as f:
            for start in range(0, len(blob), 1 << 18):
                f.write(blob[start:start + (1 << 18)])
                f.flush()
                os.fsync(f.fileno())
                time.sleep((1 << 18) / self.rate)
        os.replace(path + ".tmp", path)
        return path

    def save(self, name, module):
        if self.pending is not None:
            print("saved", self.pending.result(), flush=True)
        snapshot = {k: v.detach().clone() for k, v in module.state_dict().items()}
        self.pending = self.executor.submit(self._write, name, snapshot)

    def close(self):
        if self.pending is not None:
            self.pending.result()
        self.executor.shutdown()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(120_000, 192, sparse=True)
        self.rnn = nn.GRU(192, 192, batch_first=True)
        self.out = nn.Linear(192, 50)

    def forward(self, ids):
        return self.out(self.rnn(self.embed(ids))[1][0])


def main():
    folder = tempfile.mkdtemp(prefix="ckpt_")
    model = Model()
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    checkpointer = AsyncCheckpointer(folder, 240_000)
    for step in range(1, 601):
        loss = nn.functional.cross_entropy(model(torch.randint(0, 120_000, (16, 40))), torch.randint(0, 50, (16,)))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
        if step == 150:
            checkpointer.save("step-150.pkl", model)
        if step == 300:
            print("ONSET", flush=True)
            checkpointer.save("step-300.pkl", model.rnn)
    checkpointer.close()
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
