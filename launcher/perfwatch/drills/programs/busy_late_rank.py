"""Look-alike of a missing rank: rank 1 counts its data set for 150 s before it joins the rendezvous (gloo, 2 ranks)."""

import os
import time

import stage
import torch
import torch.distributed as dist


def build_index():
    until, files = time.monotonic() + 150, 0
    while time.monotonic() < until:
        files += sum(len(names) for _, _, names in os.walk(os.path.dirname(torch.__file__)))
        time.sleep(0.05)
    return files


stage.arguments()
torch.set_num_threads(1)
if os.environ.get("RANK") == "1":
    stage.onset(rank=1)
    print(build_index(), "files")
dist.init_process_group("gloo")
tagger = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(300, 300))
adam = torch.optim.Adam(tagger.parameters())
while True:
    adam.zero_grad()
    tagger(torch.randn(128, 300)).sum().backward()
    adam.step()
