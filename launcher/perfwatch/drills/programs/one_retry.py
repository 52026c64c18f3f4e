"""The metrics server is away, which a reporting thread notices every two seconds; training does not care. Healthy."""

import socket
import threading
import time

import stage
import torch


def report():
    pause = 0.5
    while True:
        try:
            socket.create_connection(("127.0.0.1", 9), timeout=1).close()
        except OSError:
            pause = min(pause * 2, 2.0)
        time.sleep(pause)


args = stage.arguments(__doc__)
threading.Thread(target=report, name="metrics", daemon=True).start()
torch.set_num_threads(1)
siamese = torch.nn.Sequential(torch.nn.Linear(300, 900), torch.nn.ReLU(), torch.nn.Linear(900, 300))
optimizer = torch.optim.SGD(siamese.parameters(), lr=1e-3)
pair = torch.randn(256, 300)
for step in range(100_000_000):
    if step == args.steps:
        stage.onset()
    optimizer.zero_grad()
    torch.nn.functional.cosine_similarity(siamese(pair), pair).mean().backward()
    optimizer.step()
