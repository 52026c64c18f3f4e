"""Look-alike of a stuck kernel: a simulation on every element, whose one kernel takes seconds and then ends. Healthy."""

import accelerator
import stage
import torch

CODE = """
template <typename T> T orbit(T x, T turns) {
    for (long long turn = 0; turn < (long long)turns; turn++) x = T(3.9) * x * (T(1) - x);
    return x;
}
"""
SECONDS = {"loud": 5.0, "quiet": 2.5, "masked": 9.0}

args = stage.arguments(__doc__)
card = accelerator.device()
orbit = torch.cuda.jiterator._create_jit_fn(CODE, turns=1.0)
particles = torch.rand(1 << 22, device=card)
surrogate = torch.nn.Linear(1024, 1024).to(card)
optimizer = torch.optim.SGD(surrogate.parameters(), lr=1e-3)
trial = accelerator.typical_seconds(lambda: orbit(particles, turns=20_000.0))
turns = 20_000.0 * SECONDS[args.strength] / trial
for step in range(10**9):
    if step == 3:
        stage.onset()
    ends = orbit(particles, turns=turns if step >= 3 else 20_000.0)
    loss = (surrogate(particles.view(-1, 1024)) - ends.view(-1, 1024)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item(), flush=True)
