"""FIELD
source: pytorch/torchtitan#1301 (a checkpoint takes long); here every_n_train_steps=1 was left from a test
mechanism: "last.ckpt" with the optimizer's state is written, synced and renamed at each step, in the training thread
needs: none
ranks: 1
onset: printed
state: slow
cause: slow_checkpoint
blame: save_last (last_every_step.py)
twin: none
"""

import os
import signal
import tempfile

import torch

signal.alarm(300)
torch.set_num_threads(1)
folder = tempfile.mkdtemp()
net = torch.nn.Sequential(
    torch.nn.EmbeddingBag(20_000, 128), torch.nn.Linear(128, 512), torch.nn.GELU(), torch.nn.Linear(512, 2000)
)
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)


def save_last(step):
    path = os.path.join(folder, "last.ckpt")
    with open(path + ".tmp", "wb") as file:
        torch.save({"step": step, "model": net.state_dict(), "optimizer": opt.state_dict()}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".tmp", path)


for step in range(10**6):
    ids = torch.randint(0, 20_000, (64, 20))
    loss = torch.nn.functional.cross_entropy(net(ids), torch.randint(0, 2000, (64,)))
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step >= 100:
        save_last(step)
    if step == 103:
        print("ONSET", flush=True)
    if step % 10 == 0:
        print("step", step, "loss", loss.item(), flush=True)
