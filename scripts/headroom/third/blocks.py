"""Transformer layers that several programs of the third set share."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class Attention(nn.Module):
    """Self-attention: one fused kernel, or written out with its matrix of scores."""

    def __init__(self, width: int, heads: int, *, causal: bool = False, written_out: bool = False) -> None:
        super().__init__()
        self.heads, self.causal, self.written_out = heads, causal, written_out
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, keep: Tensor | None = None, past: list[Tensor] | None = None) -> Tensor:
        """[batch, length, width] to the same; ``keep`` marks real keys, ``past`` holds keys and values and grows."""
        batch, length, width = x.shape
        q, k, v = self.into(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if past is not None:
            if past:
                k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
            past[:] = [k, v]
        if self.written_out:
            scores = q @ k.transpose(2, 3) * q.shape[-1] ** -0.5
            if self.causal:
                scores = scores.masked_fill(torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1), float("-inf"))
            if keep is not None:
                scores = scores.masked_fill(~keep, float("-inf"))
            mixed = torch.softmax(scores, -1) @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=keep, is_causal=self.causal and length > 1)
        found: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return found


class Block(nn.Module):
    """Attention and a perceptron, each behind a norm."""

    def __init__(self, width: int, heads: int, *, causal: bool = False, written_out: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal=causal, written_out=written_out)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, keep: Tensor | None = None, past: list[Tensor] | None = None) -> Tensor:
        """[batch, length, width] to the same."""
        x = x + self.attention(self.first(x), keep, past)
        found: Tensor = x + self.perceptron(self.second(x))
        return found
