"""Look-alike of a stuck kernel: a recurrence that only one block can work on, seconds long; it ends, and steps go on.

Slow, for nearly all of the card has nothing to do.
"""

import accelerator
import stage
import torch

CODE = """
template <typename T> T recur(T x, T turns) {
    for (long long turn = 0; turn < (long long)turns; turn++) x = T(3.7) * x * (T(1) - x);
    return x;
}
"""
SECONDS = {"loud": 4.0, "quiet": 2.0, "masked": 8.0}

args = stage.arguments(__doc__)
card = accelerator.device()
recur = torch.cuda.jiterator._create_jit_fn(CODE, turns=1.0)
states = torch.rand(64, device=card)
readout = torch.nn.Linear(64, 64).to(card)
optimizer = torch.optim.SGD(readout.parameters(), lr=1e-3)
trial = accelerator.typical_seconds(lambda: recur(states, turns=100_000.0))
turns = 100_000.0 * SECONDS[args.strength] / trial
for step in range(10**9):
    if step == 3:
        stage.onset()
    states = recur(states, turns=turns if step >= 3 else 100_000.0)
    loss = (readout(states) - 0.5).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item(), flush=True)
