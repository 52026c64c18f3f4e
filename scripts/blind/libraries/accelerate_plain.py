"""FIELD
source: own (accelerate's plain training loop on two processes)
mechanism: two ranks train a small convolutional network with Accelerator.prepare, accumulate over two batches and gather a metric from
    all ranks every 50 steps; nothing is wrong
needs: none
ranks: 2
onset: printed
state: healthy
cause: cpu_training, balanced
blame: none
twin: accelerate_gather
"""

import signal

signal.alarm(300)

import torch
from accelerate import Accelerator

torch.set_num_threads(1)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
net = torch.nn.Sequential(
    torch.nn.Conv2d(3, 24, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(24, 48, 3, 2), torch.nn.ReLU(),
    torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(768, 10),
)
images = torch.randn(2048, 3, 32, 32)
data = torch.utils.data.TensorDataset(images, (images.mean((1, 2, 3)) > 0).long())
net, optimizer, loader = accelerator.prepare(
    net, torch.optim.AdamW(net.parameters(), 1e-3), torch.utils.data.DataLoader(data, 32, shuffle=True)
)
step = 0
while True:
    for batch, labels in loader:
        with accelerator.accumulate(net):
            loss = torch.nn.functional.cross_entropy(net(batch), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        step += 1
        if step % 50 == 0:
            mean = accelerator.gather_for_metrics(loss.detach()[None]).mean().item()
            accelerator.print("step", step, "loss", mean, flush=True)
        if step == 150 and accelerator.is_main_process:
            print("ONSET", flush=True)
