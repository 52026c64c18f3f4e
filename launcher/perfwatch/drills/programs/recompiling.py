"""torch.compile with shapes that never repeat: it traces and compiles again and again in mid-training."""

import random

import stage
import surroundings
import torch

CHANGE_EVERY = {"loud": 1, "quiet": 5, "masked": 12}  # steps

args = stage.arguments(__doc__)
surroundings.innocent_activity(args.strength)
torch.set_num_threads(1)
torch._dynamo.config.recompile_limit = 1_000_000
torch._dynamo.config.accumulated_recompile_limit = 1_000_000
model = torch.nn.Sequential(torch.nn.Linear(256, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 256))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)


@torch.compile(backend="aot_eager", dynamic=False)
def loss_of(batch, temperature):
    return (model(batch) / temperature).square().mean()


length, temperature = 256, 1.0
for step in range(100_000_000):
    if step == args.steps:
        stage.onset()
    if step >= args.steps and step % CHANGE_EVERY[args.strength] == 0:
        length, temperature = random.randrange(200, 300), random.random()  # a float argument is a guard, too
    optimizer.zero_grad()
    loss_of(torch.randn(length, 256), temperature).backward()
    optimizer.step()
