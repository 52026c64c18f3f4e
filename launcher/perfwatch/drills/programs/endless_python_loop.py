"""The training thread looks for a hard negative that does not exist: pure Python, no way out of the loop."""

import threading
import time

import stage
import torch

opt = stage.arguments()


def hard_negative(anchor, scores):
    candidate = anchor
    while scores[candidate % len(scores)] <= scores[anchor]:
        candidate += 1
        candidate %= len(scores)
    return candidate


def monitor():
    while True:
        print("gpu: none, cpu: ok", flush=True)
        time.sleep(1)


if opt.strength == "masked":
    threading.Thread(target=monitor, daemon=True).start()
encoder = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
adam = torch.optim.Adam(encoder.parameters(), 1e-4)
for step in range(10**8):
    scores = torch.rand(64).tolist()
    anchor = 0 if step < opt.steps else max(range(64), key=scores.__getitem__)
    scores[0] = -1.0
    if step == opt.steps:
        stage.onset()
    negative = hard_negative(anchor or 0, scores) if step < opt.steps or anchor else hard_negative(1, [0.0, 1.0])
    z = encoder(torch.randn(256, 128))
    loss = torch.relu(1 + z[negative] @ z[0])
    adam.zero_grad()
    loss.backward()
    adam.step()
