"""A background thread copies the replay buffer under the trainer's lock, and works on its copy outside of it. Healthy."""

import hashlib
import threading

import stage
import torch

options = stage.arguments(__doc__)
torch.set_num_threads(1)
buffer_lock = threading.Lock()
buffer = [torch.rand(64) for _ in range(256)]


def checksum_for_ever():
    while True:
        with buffer_lock:
            copied = list(buffer)
        for transition in copied:
            hashlib.pbkdf2_hmac("sha256", transition.numpy().tobytes(), b"replay", 200)


threading.Thread(target=checksum_for_ever, name="checksums", daemon=True).start()
critic = torch.nn.Sequential(torch.nn.Linear(64, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1))
adam = torch.optim.Adam(critic.parameters())
for step in range(100_000_000):
    if step == options.steps:
        stage.onset()
    with buffer_lock:
        states = torch.stack(buffer)
    adam.zero_grad()
    critic(states).square().mean().backward()
    adam.step()
