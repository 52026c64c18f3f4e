"""Second set, written from the list of levers alone: language models and their rollouts.

ANSWERS (off: the levers that are off, the one expected to bring most first)
    chat_decoder       flash_attention, compile           attention written out in fp32, grouped heads repeated
    dual_encoder       mixed_precision, compile           (instead: tf32)
    padded_encoder     padding                            a quarter of the tokens is real, the batch is as long as its longest
    wide_perceptron    fp8                                products of 4,096 by 16,384 in bf16
    grpo_one_by_one    batched_generation                 the completions of a prompt are generated one after the other
    tuned_decoder      nothing
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.nn.functional as F  # noqa: N812
from pairing import DEVICE, Off, Pair, Step, adam, autocast, compiled, main
from torch import Tensor, nn

CARD = DEVICE == "cuda"


class Rotary(nn.Module):
    """Rotary positions."""

    def __init__(self, head: int, length: int) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(length), 10000.0 ** (-torch.arange(0, head, 2) / head))
        self.register_buffer("cos", angles.cos().repeat(1, 2), persistent=False)
        self.register_buffer("sin", angles.sin().repeat(1, 2), persistent=False)

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        """[batch, heads, length, head] to the same."""
        cos: Any = self.cos
        sin: Any = self.sin
        ends = start + x.shape[2]
        low, high = x.chunk(2, -1)
        turned: Tensor = x * cos[start:ends] + torch.cat([-high, low], -1) * sin[start:ends]
        return turned.to(x.dtype)


class GroupedAttention(nn.Module):
    """Attention with fewer keys than queries."""

    def __init__(self, width: int, heads: int, groups: int, length: int, written_out: bool) -> None:
        super().__init__()
        self.heads, self.groups, self.head, self.written_out = heads, groups, width // heads, written_out
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, groups * self.head, bias=False)
        self.v = nn.Linear(width, groups * self.head, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        self.rotary = Rotary(self.head, length)

    def forward(self, x: Tensor, past: list[Tensor] | None = None) -> Tensor:
        """[batch, length, width] to the same; ``past`` holds keys and values and grows."""
        batch, length, width = x.shape
        start = past[0].shape[2] if past else 0
        q = self.rotary(self.q(x).view(batch, length, self.heads, -1).transpose(1, 2), start)
        k = self.rotary(self.k(x).view(batch, length, self.groups, -1).transpose(1, 2), start)
        v = self.v(x).view(batch, length, self.groups, -1).transpose(1, 2)
        if past is not None:
            if past:
                k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
            past[:] = [k, v]
        k = k.repeat_interleave(self.heads // self.groups, 1)
        v = v.repeat_interleave(self.heads // self.groups, 1)
        if self.written_out:
            later = torch.full((length, length), float("-inf"), device=x.device).triu(1)
            chances = torch.softmax((q @ k.transpose(2, 3)).float() * self.head**-0.5 + later, -1).to(v.dtype)
            mixed = chances @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=length > 1)
        return self.o(mixed.transpose(1, 2).reshape(batch, length, width))


class Layer(nn.Module):
    """A layer of a chat model."""

    def __init__(self, width: int, heads: int, groups: int, length: int, written_out: bool) -> None:
        super().__init__()
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = GroupedAttention(width, heads, groups, length, written_out)
        inner = width * 11 // 4 // 128 * 128 or width
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor, past: list[Tensor] | None = None) -> Tensor:
        """[batch, length, width] to the same."""
        x = x + self.attention(self.first(x), past)
        y = self.second(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Chat(nn.Module):
    """A chat model."""

    def __init__(
        self, words: int, width: int, layers: int, *, head: int = 64, length: int = 2048, written_out: bool = False
    ) -> None:
        super().__init__()
        heads = width // head
        self.words = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Layer(width, heads, max(1, heads // 4), length, written_out) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens: Tensor, pasts: list[list[Tensor]] | None = None) -> Tensor:
        """Tokens [batch, length] to logits."""
        x = self.words(tokens)
        for number, layer in enumerate(self.layers):
            x = layer(x, pasts[number] if pasts is not None else None)
        logits: Tensor = self.head(self.norm(x))
        return logits


def chat(off: Off, *, layers: int, batch: int, length: int, width: int = 1536, words: int = 32000) -> Step:
    """Next-token training of a chat model."""
    if not CARD:
        layers, batch, length, width, words = 2, 2, 32, 128, 256
    model = Chat(words, width, layers, length=length, written_out="flash_attention" in off).to(DEVICE)
    called, optimizer = compiled(model, off), adam(model.parameters(), off)
    tokens = torch.randint(words, (batch, length + 1), device=DEVICE)

    def step() -> None:
        with autocast(off):
            loss = F.cross_entropy(called(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def encoder(width: int, layers: int) -> nn.Module:
    """PyTorch's own encoder layers."""
    one = nn.TransformerEncoderLayer(width, width // 64, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
    return nn.TransformerEncoder(one, layers, enable_nested_tensor=False)


def dual_encoder(off: Off) -> Step:
    """Questions against passages, contrastive."""
    width, layers, batch, length, words = (768, 8, 96, 192, 30528) if CARD else (64, 1, 4, 16, 64)
    model = nn.Sequential(nn.Embedding(words, width), encoder(width, layers)).to(DEVICE)
    called, optimizer = compiled(model, off), adam(model.parameters(), off)
    pairs = torch.randint(words, (2 * batch, length), device=DEVICE)
    right = torch.arange(batch, device=DEVICE)

    def step() -> None:
        with autocast(off):
            asked, told = F.normalize(called(pairs).mean(1), dim=-1).chunk(2)
            loss = F.cross_entropy(20.0 * asked @ told.T, right)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def padded_encoder(off: Off) -> Step:
    """A classifier of texts of very different lengths."""
    width, layers, batch, length, words = (768, 8, 64, 512, 30528) if CARD else (64, 1, 8, 32, 64)
    words_of, body, head = nn.Embedding(words, width), encoder(width, layers), nn.Linear(width, 4)
    model = nn.ModuleList([words_of, body, head]).to(DEVICE)
    optimizer = adam(model.parameters(), off)
    torch.manual_seed(7)
    lengths = torch.empty(batch).log_normal_(-1.6, 0.6).mul(length).clamp(4, length).int()
    lengths[0] = length
    order = lengths.argsort(descending=True)
    parts = [order] if "padding" in off else list(order.chunk(4))
    batches = []
    for rows in parts:
        longest = int(lengths[rows].max())
        longest = (longest + 7) // 8 * 8
        absent = torch.arange(longest)[None] >= lengths[rows][:, None]
        tokens = torch.randint(1, words, (len(rows), longest)).masked_fill(absent, 0)
        labels = torch.randint(4, (len(rows),))
        batches.append(tuple(one.to(DEVICE) for one in (tokens, absent, labels)))

    def step() -> None:
        for tokens, absent, labels in batches:
            with autocast(off):
                found = head(body(words_of(tokens), src_key_padding_mask=absent)[:, 0])
                loss = F.cross_entropy(found, labels, reduction="sum") / batch
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class Float8(torch.autograd.Function):
    """A product in 8-bit floating point, scaled for each tensor; so are its gradients."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor) -> Tensor:
        """[rows, into] and [out, into] to [rows, out]."""
        context.save_for_backward(x, weight)
        return _product(x, weight.t())

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Of both."""
        x, weight = context.saved_tensors
        (gradient,) = gradients
        return _product(gradient, weight), _product(gradient.t(), x)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """A times b, both in float8."""
    if not CARD:
        return a @ b
    left, left_scale = _rounded(a)
    right, right_scale = _rounded(b.t())
    return torch._scaled_mm(left, right.t(), left_scale, right_scale, out_dtype=torch.bfloat16, use_fast_accum=True)


def _rounded(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.abs().amax().float().clamp(min=1e-6) / 448.0
    return (x / scale).to(torch.float8_e4m3fn).contiguous(), scale


class Perceptron(nn.Module):
    """Two wide layers in bf16, residual."""

    def __init__(self, width: int, eight: bool) -> None:
        super().__init__()
        self.eight, self.norm = eight, nn.LayerNorm(width)
        self.up = nn.Parameter(torch.randn(4 * width, width) * width**-0.5)
        self.down = nn.Parameter(torch.randn(width, 4 * width) * 0.5 * width**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """[rows, width] to the same."""
        product: Any = Float8.apply if self.eight else F.linear
        return x + product(F.gelu(product(self.norm(x), self.up)), self.down)


def wide_perceptron(off: Off) -> Step:
    """A stack of wide perceptrons in bf16, compiled."""
    width, layers, rows = (4096, 6, 16384) if CARD else (64, 2, 32)
    model = nn.Sequential(*(Perceptron(width, "fp8" not in off) for _ in range(layers))).to(DEVICE, torch.bfloat16)
    called = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    x, target = torch.randn(2, rows, width, device=DEVICE, dtype=torch.bfloat16)

    def step() -> None:
        F.mse_loss(called(x), target).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def grpo(off: Off) -> Step:
    """Sample a group of completions for a prompt, score them, train on them once."""
    width, layers, words, prompt, new, group = (1024, 8, 16384, 64, 48, 16) if CARD else (64, 1, 64, 4, 4, 2)
    model = Chat(words, width, layers, length=prompt + new).to(DEVICE)
    optimizer = adam(model.parameters(), off)
    asked = torch.randint(words, (1, prompt), device=DEVICE)

    @torch.no_grad()
    def sampled(count: int) -> Tensor:
        tokens, pasts = asked.expand(count, -1), [[] for _ in range(layers)]
        with torch.autocast(DEVICE, torch.bfloat16):
            last = tokens
            for _ in range(new):
                chances = torch.softmax(model(last, pasts)[:, -1].float(), -1)
                last = torch.multinomial(chances, 1)
                tokens = torch.cat([tokens, last], 1)
        return tokens

    def step() -> None:
        alone = "batched_generation" in off
        tokens = torch.cat([sampled(1) for _ in range(group)]) if alone else sampled(group)
        reward = (tokens[:, prompt:] % 7 == 0).float().mean(1)
        better = (reward - reward.mean()) / (reward.std() + 1e-4)
        with torch.autocast(DEVICE, torch.bfloat16):
            logits = model(tokens[:, :-1])[:, prompt - 1 :]
        chosen = torch.log_softmax(logits.float(), -1).gather(-1, tokens[:, prompt:, None])[..., 0]
        ratio = torch.exp(chosen - chosen.detach())
        loss = -torch.minimum(ratio * better[:, None], ratio.clamp(0.8, 1.2) * better[:, None]).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


PAIRS = {
    "chat_decoder": Pair(lambda off: chat(off, layers=6, batch=4, length=2048), ("flash_attention", "compile")),
    "dual_encoder": Pair(dual_encoder, ("mixed_precision", "compile"), ("tf32",)),
    "padded_encoder": Pair(padded_encoder, ("padding",)),
    "wide_perceptron": Pair(wide_perceptron, ("fp8",)),
    "grpo_one_by_one": Pair(grpo, ("batched_generation",), steps=1),
    "tuned_decoder": Pair(lambda off: chat(off, layers=10, batch=16, length=2048)),
}

if __name__ == "__main__":
    main(PAIRS)
