"""The kernel that never ends is launched in the backward pass: autograd's own thread waits, the main one waits for it."""

import accelerator
import stage
import surroundings
import torch

CODE = """
template <typename T> T settle(T x, T decay) {
    while (x > T(1e-3)) x *= decay;
    return x;
}
"""
ROWS = {"loud": 1, "quiet": 4096, "masked": 64}  # rows of 64 numbers that do not settle


class Damped(torch.autograd.Function):
    decay = 0.5

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        settled = settle(grad[: ROWS[args.strength]].abs() * 1e6, decay=Damped.decay)
        return grad * (1.0 if settled.max().item() < 1.0 else 0.5)


args = stage.arguments(__doc__)
card = accelerator.device()
surroundings.innocent_activity(args.strength)
settle = torch.cuda.jiterator._create_jit_fn(CODE, decay=0.5)
first, last = torch.nn.Linear(1024, 64).to(card), torch.nn.Linear(64, 1).to(card)
optimizer = torch.optim.SGD([*first.parameters(), *last.parameters()], lr=1e-3)
for step in range(10**9):
    if step == args.steps:
        stage.onset()
        Damped.decay = 1.0
    batch = torch.randn(4096, 1024, device=card)
    loss = (last(Damped.apply(first(batch))) - torch.randn(4096, 1, device=card)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
