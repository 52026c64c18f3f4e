"""FIELD
source: pytorch/pytorch#54059 and jpata/particleflow#233 (hang in barrier(): one rank validates through the DistributedDataParallel wrapper
    while the others wait in a barrier)
mechanism: two ranks train a timm model with batch norm; rank 0 alone validates with the wrapped model, whose forward pass broadcasts the
    buffers, and rank 1 waits in dist.barrier() for it
needs: none
ranks: 2
onset: printed
state: hung
cause: mismatched_collective, stalled_collective
blame: rank 0, validate (scripts/blind/libraries/timm_validate.py)
twin: timm_train
"""

import datetime
import signal

signal.alarm(300)

import timm
import torch
import torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=30))
net = timm.create_model("resnet10t", pretrained=False, num_classes=20)
net = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(net.parameters(), 1e-2, momentum=0.9)


def validate():
    net.eval()
    right = 0
    with torch.no_grad():
        for _ in range(10):
            images, labels = torch.randn(8, 3, 48, 48), torch.randint(0, 20, (8,))
            right += (net(images).argmax(-1) == labels).sum().item()
    net.train()
    return right / 80


for epoch in range(1_000_000):
    for number in range(40):
        images, labels = torch.randn(8, 3, 48, 48), torch.randint(0, 20, (8,))
        loss = torch.nn.functional.cross_entropy(net(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print("epoch", epoch, loss.item(), flush=True)
        print("ONSET", flush=True)
        print("accuracy", validate(), flush=True)
    dist.barrier()
