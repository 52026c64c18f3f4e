"""A small decoder-only language model, as people write it, and random tokens to train it on.

Imported by the programs by path, like ``stage``.
"""

import torch
from torch import nn
from torch.nn import functional

VOCABULARY = 8192


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def attend(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x):
        x = x + self.attend(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


class Decoder(nn.Module):
    def __init__(self, width=2048, depth=8, heads=16, length=1024):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(x)))

    def loss(self, tokens):
        logits = self(tokens[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def build(device, width=2048, depth=8, length=1024):
    """Make a model on the card and its fused AdamW."""
    with device:
        model = Decoder(width, depth, width // 128, length)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def random_tokens(device, batch, length=1024):
    """Make a batch of token numbers."""
    return torch.randint(VOCABULARY, (batch, length + 1), device=device)


def train_step(model, optimizer, tokens, dtype=torch.bfloat16):
    """Forward and backward under autocast to ``dtype`` (None: none), then the optimizer; gives the loss, not waited for."""
    with torch.autocast("cuda", dtype or torch.bfloat16, enabled=dtype is not None):
        loss = model.loss(tokens)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return loss
