"""FIELD
source: webdataset/webdataset#225 and webdataset/webdataset#188 (DDP training hangs at the end of the epoch: split_by_node gives the
    processes different numbers of shards, so one of them has batches left when another has none)
mechanism: two ranks read three shards split by node; rank 1 has read its one shard, leaves its loop and waits in the barrier before the
    next epoch, while rank 0 trains on its second shard and waits in the gradient exchange
needs: none
ranks: 2
onset: printed
state: hung
cause: mismatched_collective, stalled_collective
blame: none
twin: webdataset_shards
"""

import datetime
import os
import signal
import tempfile

signal.alarm(300)

import torch
import torch.distributed as dist
import webdataset

torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=30))
rank = dist.get_rank()
folder = os.path.join(tempfile.gettempdir(), "shards-" + os.environ["TORCHELASTIC_RUN_ID"])
if rank == 0:
    os.makedirs(folder, exist_ok=True)
    for shard in range(3):
        with webdataset.TarWriter(f"{folder}/train-{shard:06d}.tar") as tar:
            for number in range(1600):
                tar.write({"__key__": f"{shard}-{number:05d}", "x.pth": torch.randn(3, 16, 16), "cls": number % 10})
dist.barrier()
data = webdataset.WebDataset(
    f"{folder}/train-{{000000..000002}}.tar", shardshuffle=False, nodesplitter=webdataset.split_by_node
)
loader = webdataset.WebLoader(data.decode().to_tuple("x.pth", "cls").batched(16), batch_size=None, num_workers=1)
net = torch.nn.parallel.DistributedDataParallel(
    torch.nn.Sequential(
        torch.nn.Conv2d(3, 48, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(48, 96, 3, padding=1), torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten(), torch.nn.Linear(384, 10),
    )
)
optimizer = torch.optim.SGD(net.parameters(), 1e-2)
for epoch in range(1_000_000):
    for step, (images, labels) in enumerate(loader):
        loss = torch.nn.functional.cross_entropy(net(images), torch.as_tensor(labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 20 == 0:
            print("epoch", epoch, "step", step, loss.item(), flush=True)
    if rank == 1:
        print("ONSET", flush=True)
    dist.barrier()
