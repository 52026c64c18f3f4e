"""FIELD
source: own (webdataset's pipeline of shards with two workers, as its tutorial builds it)
mechanism: local tar shards are read, shuffled, decoded and batched by two workers of a WebLoader; nothing is wrong
needs: none
ranks: 1
onset: printed
state: healthy
cause: cpu_training, balanced
blame: none
twin: webdataset_pipe
"""

import signal
import tempfile

signal.alarm(300)

import torch
import webdataset

torch.set_num_threads(1)
folder = tempfile.mkdtemp()
for shard in range(6):
    with webdataset.TarWriter(f"{folder}/train-{shard:06d}.tar") as tar:
        for number in range(300):
            tar.write({"__key__": f"{shard}-{number:05d}", "x.pth": torch.randn(3, 24, 24), "cls": number % 10})
data = (
    webdataset.WebDataset(f"{folder}/train-{{000000..000005}}.tar", resampled=True, shardshuffle=False)
    .shuffle(200)
    .decode()
    .to_tuple("x.pth", "cls")
    .batched(32)
)
loader = webdataset.WebLoader(data, batch_size=None, num_workers=2)
net = torch.nn.Sequential(
    torch.nn.Conv2d(3, 48, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(48, 96, 3, padding=1), torch.nn.ReLU(),
    torch.nn.Conv2d(96, 96, 3, 2), torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten(), torch.nn.Linear(384, 10),
)
optimizer = torch.optim.SGD(net.parameters(), 1e-2)
for step, (images, labels) in enumerate(loader):
    loss = torch.nn.functional.cross_entropy(net(images), torch.as_tensor(labels))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print("step", step, loss.item(), flush=True)
    if step == 40:
        print("ONSET", flush=True)
