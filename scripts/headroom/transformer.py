"""The transformer of the pairs: decoder, encoder, ViT and policy are made of it."""

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Attention(nn.Module):
    """Self-attention: ``sdpa`` with ``is_causal``, ``masked`` (sdpa under a dense mask), or ``plain`` (written out)."""

    def __init__(self, width: int, heads: int, causal: bool, kind: str) -> None:
        super().__init__()
        self.heads, self.causal, self.kind = heads, causal, kind
        self.inputs, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """[batch, length, width] to the same."""
        batch, length, width = x.shape
        q, k, v = self.inputs(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        if self.kind == "plain":
            scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
            if self.causal:
                above = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
                scores = scores.masked_fill(above, float("-inf"))
            mixed = torch.softmax(scores, dim=-1).to(v.dtype) @ v
        elif self.kind == "masked":
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.output(mixed.transpose(1, 2).reshape(batch, length, width))


class RMSNorm(nn.Module):
    """As it is written in many model files: upcast, mean of squares, scale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalised over the last axis."""
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class Gated(nn.Module):
    """SwiGLU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        inner = width * 8 // 3 // 64 * 64
        self.gate, self.up, self.down = nn.Linear(width, inner), nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] to the same."""
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """Attention and a perceptron."""

    def __init__(self, width: int, heads: int, causal: bool, kind: str, gated: bool) -> None:
        super().__init__()
        norm: Any = RMSNorm if gated else nn.LayerNorm
        self.before, self.between = norm(width), norm(width)
        self.attention = Attention(width, heads, causal, kind)
        self.wide: nn.Module = (
            Gated(width)
            if gated
            else nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        )

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """[batch, length, width] to the same."""
        x = x + self.attention(self.before(x), mask)
        return x + self.wide(self.between(x))


class Transformer(nn.Module):
    """Embedding, blocks, projection.

    Args:
        words: size of the vocabulary; 0 takes features as they come.
        causal: a decoder.
        kind: of attention.
        gated: RMSNorm and SwiGLU instead of LayerNorm and GELU.
        checkpointed: recompute each block in the backward pass.
        observed: read a figure off the device after each block.
    """

    def __init__(
        self, width: int, layers: int, heads: int, words: int, *, length: int, causal: bool = True, kind: str = "sdpa",
        gated: bool = False, checkpointed: bool = False, observed: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.words = nn.Embedding(words, width) if words else None
        self.places = nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.ModuleList(Block(width, heads, causal, kind, gated) for _ in range(layers))
        self.last = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False) if words else nn.Identity()
        self.checkpointed, self.observed = checkpointed, observed
        self.seen: list[float] = []

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Tokens [batch, length] (or features with one more axis) to logits."""
        x = (self.words(x) if self.words is not None else x) + self.places[: x.shape[1]]
        for block in self.blocks:
            x = checkpoint(block, x, mask, use_reentrant=False) if self.checkpointed else block(x, mask)
            if self.observed:
                self.seen = [*self.seen[-20:], x.detach().abs().mean().item()]
        logits: Tensor = self.head(self.last(x))
        return logits
