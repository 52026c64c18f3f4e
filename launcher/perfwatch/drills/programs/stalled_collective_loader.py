"""Some ranks; a DataLoader worker of rank 1 never returns, so rank 1 stays out of the next all_reduce."""

import os
import threading
import time

import ranks
import stage
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

opts = stage.arguments()
torch.set_num_threads(1)


class Clips(Dataset):
    def __init__(self, rank):
        self.rank = rank

    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        stuck = opts.strength == "loud" or (index // 16) % 2
        if self.rank == 1 and index // 16 >= opts.steps and stuck:
            self.decode(index)
        return torch.randn(64), index % 10

    def decode(self, index):
        stage.onset(rank=self.rank)
        threading.Event().wait()  # the decoder's callback never comes


def keep_tensorboard_warm():
    with open(os.devnull, "w") as sink:
        while True:
            sink.write("heartbeat\n")
            sink.flush()
            time.sleep(0.3)


device = ranks.join(opts)
if opts.strength == "masked":
    threading.Thread(target=keep_tensorboard_warm, daemon=True).start()
model = DistributedDataParallel(torch.nn.Linear(64, 10).to(device))
sgd = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(Clips(dist.get_rank()), batch_size=16, num_workers=2)
for clips, labels in loader:
    sgd.zero_grad()
    torch.nn.functional.cross_entropy(model(clips.to(device)), labels.to(device)).backward()
    sgd.step()
    time.sleep(0.02)
