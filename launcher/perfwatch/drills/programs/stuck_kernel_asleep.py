"""The kernel never ends, and the training thread waits for it asleep (a blocking event), not spinning."""

import accelerator
import stage
import surroundings
import torch

CODE = """
template <typename T> T cool(T heat, T factor) {
    while (heat > T(1)) heat *= factor;
    return heat;
}
"""
SIDE = {"loud": 8, "quiet": 512, "masked": 64}

args = stage.arguments(__doc__)
card = accelerator.device()
surroundings.innocent_activity(args.strength)
cool = torch.cuda.jiterator._create_jit_fn(CODE, factor=0.5)
field = torch.nn.Parameter(torch.rand(SIDE[args.strength], SIDE[args.strength], device=card))
optimizer = torch.optim.Adam([field])
done = torch.cuda.Event(blocking=True)
for step in range(10**9):
    if step == args.steps:
        stage.onset()
    cooled = cool(field.detach().abs() * 100 + 2, factor=1.0 if step >= args.steps else 0.5)
    loss = (field - cooled).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    done.record()
    done.synchronize()
