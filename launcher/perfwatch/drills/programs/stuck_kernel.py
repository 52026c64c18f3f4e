"""A Newton iteration on the GPU, element by element, until it has converged; now it meets a start from which it never does.

x**3 - 2x + 2 from x = 0: 0, 1, 0, 1, ... The kernel never ends, and the training thread waits for the loss.
"""

import accelerator
import stage
import surroundings
import torch

CODE = """
template <typename T> T root(T x, T slope) {
    for (;;) {
        T value = x * x * x - slope * x + T(2);
        if (value < T(1e-3) && value > T(-1e-3)) return x;
        x -= value / (T(3) * x * x - slope);
    }
}
"""
STUCK = {"loud": 1, "quiet": 500_000, "masked": 300}  # elements that never converge: one block, the whole card, a few

args = stage.arguments(__doc__)
card = accelerator.device()
surroundings.innocent_activity(args.strength)
solve = torch.cuda.jiterator._create_jit_fn(CODE, slope=2.0)
model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024)).to(card)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(10**9):
    starts = torch.empty(1 << 20, device=card).uniform_(-3.0, -2.0)  # from here it converges within a few turns
    if step == args.steps:
        stage.onset()
        starts[: STUCK[args.strength]] = 0.0
    targets = solve(starts).view(1024, 1024)
    loss = (model(torch.randn(1024, 1024, device=card)) - targets).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item(), flush=True)
