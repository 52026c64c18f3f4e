"""FIELD
source: huggingface/accelerate#2785 and huggingface/transformers#31532 (the script hangs in gather_for_metrics, which only the main process calls)
mechanism: two ranks; after some steps the main process alone evaluates and gathers its predictions from all processes; the other rank is
    already in the gradient exchange of its next step
needs: none
ranks: 2
onset: printed
state: hung
cause: mismatched_collective, stalled_collective
blame: rank 0, evaluate (scripts/blind/libraries/accelerate_gather.py)
twin: accelerate_plain
"""

import signal

signal.alarm(300)

import torch
from accelerate import Accelerator

torch.set_num_threads(1)
accelerator = Accelerator(cpu=True)
net = torch.nn.Sequential(
    torch.nn.Conv2d(3, 24, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(24, 48, 3, 2), torch.nn.ReLU(),
    torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(768, 10),
)
images = torch.randn(2048, 3, 32, 32)
data = torch.utils.data.TensorDataset(images, (images.mean((1, 2, 3)) > 0).long())
held_out = torch.utils.data.DataLoader(torch.utils.data.Subset(data, range(256)), 32)
net, optimizer, loader, held_out = accelerator.prepare(
    net, torch.optim.AdamW(net.parameters(), 1e-3), torch.utils.data.DataLoader(data, 32, shuffle=True), held_out
)


def evaluate():
    right = 0
    with torch.no_grad():
        for batch, labels in held_out:
            guessed = accelerator.unwrap_model(net)(batch).argmax(-1)
            guessed, labels = accelerator.gather_for_metrics((guessed, labels))
            right += (guessed == labels).sum().item()
    return right


step = 0
while True:
    for batch, labels in loader:
        loss = torch.nn.functional.cross_entropy(net(batch), labels)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % 20 == 0:
            accelerator.print("step", step, flush=True)
        if step == 150 and accelerator.is_main_process:
            print("ONSET", flush=True)
            print("right", evaluate(), flush=True)
