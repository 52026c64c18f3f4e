"""The first step of a compiled model: one long compilation, with the C++ compiler as a child. Then it would train."""

import os

import stage
import surroundings
import torch

if __name__ == "__main__":
    args = stage.arguments(__doc__)
    cache = surroundings.scratch_folder()
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache)  # nothing compiled earlier may be used
    torch.set_num_threads(1)
    layers = [torch.nn.TransformerEncoderLayer(64 + 8 * i, 4, 96 + 32 * i, batch_first=True) for i in range(24)]
    optimizer = torch.optim.AdamW([p for layer in layers for p in layer.parameters()])
    compiled = [torch.compile(layer, dynamic=False) for layer in layers]
    stage.onset()
    while True:
        optimizer.zero_grad()
        for i, layer in enumerate(compiled):
            layer(torch.randn(4, 16, 64 + 8 * i)).square().mean().backward()
        optimizer.step()
