"""Nothing but forward, backward, step, on data in memory. Healthy."""

import stage
import torch


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.mix = torch.nn.Sequential(
            torch.nn.Linear(width, 2 * width), torch.nn.GELU(), torch.nn.Linear(2 * width, width)
        )

    def forward(self, x):
        return x + self.mix(self.norm(x))


args = stage.arguments(__doc__)
torch.set_num_threads(1)
mixer = torch.nn.Sequential(*[Block(192) for _ in range(3)])
optimizer = torch.optim.AdamW(mixer.parameters(), lr=3e-4)
data = torch.randn(64, 256, 192)
for step in range(100_000_000):
    if step == args.steps:
        stage.onset()
    batch = data[step % 64]
    loss = torch.nn.functional.mse_loss(mixer(batch), batch)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
