"""torch.compile warmed up during the first steps and never again. Healthy, once that is over."""

import stage
import torch

args = stage.arguments(__doc__)
torch.set_num_threads(1)
block = torch.nn.TransformerEncoderLayer(128, 4, dim_feedforward=512, dropout=0.0, batch_first=True)
compiled = torch.compile(block, backend="aot_eager")
optimizer = torch.optim.AdamW(block.parameters())
sequence = torch.randn(16, 32, 128)
for step in range(100_000_000):
    if step == args.steps:
        stage.onset()
    optimizer.zero_grad()
    compiled(sequence).square().mean().backward()
    optimizer.step()
