"""Every epoch ends with a short validation: steps stop for a second and go on. Healthy."""

import stage
import torch

args = stage.arguments(__doc__)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(400, 800), torch.nn.ReLU(), torch.nn.Linear(800, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
train_x, held_out = torch.randn(40, 256, 400), torch.randn(20, 1024, 400)
labels = torch.randint(10, (256,))
seen = 0
while True:
    for batch in train_x.repeat(4, 1, 1):
        if seen == args.steps:
            stage.onset()
        seen += 1
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(batch), labels).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        best = sum(model(batch).max().item() for batch in held_out)
    model.train()
