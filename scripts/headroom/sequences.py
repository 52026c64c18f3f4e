"""RNN-T, diffusion, PPO.

ANSWERS (off: the levers that are off, the one expected to bring most first)
    rnnt_cells           cudnn_rnn            a Python loop over LSTMCell instead of cuDNN's LSTM
    rnnt_joint           mixed_precision      the joint network over time and labels in fp32
    diffusion_average    fused_optimizer      optimizer and moving average walk the parameters one by one
    diffusion_defaults   mixed_precision, channels_last
    diffusion_noise      pageable_copies      noise is made on the host and copied
    ppo_prefix           kv_cache             each token computes the whole prefix again
    ppo_tokens           cuda_graphs          generation with a cache, one launch at a time
    ppo_stops            synchronising_reads  the host asks at each token whether to stop
    ppo_tuned            nothing
"""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from pairing import DEVICE, Off, Pair, Step, adam, autocast, captured, compiled, main
from torch import Tensor, nn
from transformer import Transformer
from vision import UNet


class Transducer(nn.Module):
    """Encoder and predictor of LSTMs, a joint network over both."""

    def __init__(self, width: int, layers: int, words: int, cells: bool) -> None:
        super().__init__()
        self.cells = nn.ModuleList(nn.LSTMCell(width, width) for _ in range(layers)) if cells else None
        self.encoder = None if cells else nn.LSTM(width, width, layers, batch_first=True)
        self.words, self.predictor = nn.Embedding(words, width), nn.LSTM(width, width, 1, batch_first=True)
        self.joint, self.head = nn.Linear(2 * width, width), nn.Linear(width, words)

    def forward(self, heard: Tensor, said: Tensor) -> Tensor:
        """Features [batch, time, width] and labels [batch, labels] to logits [batch, time, labels, words]."""
        if self.encoder is not None:
            encoded = self.encoder(heard)[0]
        else:
            encoded = heard
            for cell in self.cells or ():
                state, out = None, []
                for moment in encoded.unbind(1):
                    state = cell(moment, state)
                    out.append(state[0])
                encoded = torch.stack(out, 1)
        predicted = self.predictor(self.words(said))[0]
        every = (-1, encoded.shape[1], predicted.shape[1], -1)
        both = torch.cat([encoded[:, :, None].expand(every), predicted[:, None].expand(every)], -1)
        return self.head(torch.tanh(self.joint(both)))


def rnnt(off: Off, *, width: int, layers: int, batch: int, times: int, labels: int, words: int) -> Step:
    """A transducer under a stand-in loss over the whole lattice."""
    model = Transducer(width, layers, words, "cudnn_rnn" in off).to(DEVICE)
    optimizer = adam(model.parameters(), off)
    heard = torch.rand(batch, times, width, device=DEVICE)
    said = torch.randint(words, (batch, labels), device=DEVICE)

    def step() -> None:
        with autocast(off):
            logits = model(heard, said)
            loss = -torch.log_softmax(logits, -1)[..., 0].mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def diffusion(
    off: Off, *, width: int, batch: int, size: int, average: bool = False, host: bool = False, compile_: bool = False
) -> Step:
    """Denoising."""
    layout: Any = torch.contiguous_format if "channels_last" in off else torch.channels_last
    model = UNet(width, 4, channels=4).to(DEVICE, memory_format=layout)
    called = compiled(model, off) if compile_ else model
    slow = [one.detach().clone() for one in model.parameters()]
    optimizer = adam(model.parameters(), off)
    images = torch.rand(batch, 4, size, size, device=DEVICE).contiguous(memory_format=layout)

    def step() -> None:
        if host and "pageable_copies" in off:
            noise = torch.randn(batch, 4, size, size).to(DEVICE)
        else:
            noise = torch.randn(batch, 4, size, size, device=DEVICE)
        noise = noise.contiguous(memory_format=layout)
        level = torch.rand(batch, 1, 1, 1, device=DEVICE)
        with autocast(off):
            loss = F.mse_loss(called(images * (1 - level) + noise * level), noise)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if average and "fused_optimizer" in off:
            with torch.no_grad():
                for kept, one in zip(slow, model.parameters(), strict=True):
                    kept.mul_(0.999).add_(one, alpha=0.001)
        elif average:
            with torch.no_grad():
                torch._foreach_lerp_(slow, list(model.parameters()), 0.001)

    return step


class Policy(nn.Module):
    """A small decoder that can go on from a static cache of keys and values."""

    def __init__(self, width: int, layers: int, words: int, length: int) -> None:
        super().__init__()
        self.body = Transformer(width, layers, width // 64, words, length=length)
        self.width, self.length = width, length

    def cache(self, batch: int) -> Tensor:
        """[layers, keys and values, batch, heads, length, width of a head]"""
        blocks = self.body.blocks
        heads = self.width // 64
        return torch.zeros(len(blocks), 2, batch, heads, self.length, 64, device=DEVICE, dtype=torch.bfloat16)

    def one(self, token: Tensor, place: Tensor, cache: Tensor) -> Tensor:
        """The next logits [batch, words] for one token of each sentence at a place."""
        body: Any = self.body
        x = body.words(token)[:, None] + body.places[place]
        seen = (torch.arange(self.length, device=DEVICE) <= place)[None, None, None]
        for number, block in enumerate(body.blocks):
            given = block.before(x)
            batch, heads = len(x), block.attention.heads
            q, k, v = block.attention.inputs(given).view(batch, 1, 3, heads, -1).permute(2, 0, 3, 1, 4)
            cache[number, 0].index_copy_(2, place, k.to(cache.dtype))
            cache[number, 1].index_copy_(2, place, v.to(cache.dtype))
            mixed = F.scaled_dot_product_attention(
                q.to(cache.dtype), cache[number, 0], cache[number, 1], attn_mask=seen
            )
            x = x + block.attention.output(mixed.transpose(1, 2).reshape(batch, 1, -1))
            x = x + block.wide(block.between(x))
        return body.head(body.last(x))[:, 0]


def ppo(off: Off, *, width: int = 512, layers: int = 6, batch: int = 32, prompt: int = 32, new: int = 64) -> Step:
    """One rollout and one update on it."""
    words = 8192
    model = Policy(width, layers, words, prompt + new).to(DEVICE)
    optimizer = adam(model.parameters(), off)
    prompts = torch.randint(1, words, (batch, prompt), device=DEVICE)
    cache = model.cache(batch)
    token = torch.zeros(batch, dtype=torch.long, device=DEVICE)
    place = torch.zeros(1, dtype=torch.long, device=DEVICE)
    chosen = torch.zeros(batch, dtype=torch.long, device=DEVICE)

    @torch.no_grad()
    def forward() -> None:
        with torch.autocast(DEVICE, torch.bfloat16, cache_enabled=False):
            chosen.copy_(model.one(token, place, cache).argmax(-1))

    next_token = captured(forward, off)

    @torch.no_grad()
    def rollout() -> Tensor:
        tokens = prompts
        if "kv_cache" in off:
            with torch.autocast(DEVICE, torch.bfloat16):
                for _ in range(new):
                    tokens = torch.cat([tokens, model.body(tokens)[:, -1].argmax(-1, keepdim=True)], 1)
            return tokens
        out = torch.zeros(batch, prompt + new, dtype=torch.long, device=DEVICE)
        out[:, :prompt] = prompts
        for at in range(prompt + new - 1):
            token.copy_(out[:, at])
            place.fill_(at)
            next_token()
            if at + 1 >= prompt:
                out[:, at + 1] = chosen
                if "synchronising_reads" in off and bool((chosen == 0).all()):
                    break
        return out

    def step() -> None:
        tokens = rollout()
        with torch.autocast(DEVICE, torch.bfloat16):
            logits = model.body(tokens[:, :-1])
        chances = torch.log_softmax(logits.float(), -1).gather(-1, tokens[:, 1:, None]).squeeze(-1)
        loss = -(torch.exp(chances - chances.detach()).clamp(0.8, 1.2) * 0.1)[:, prompt - 1 :].mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


PAIRS = {
    "rnnt_cells": Pair(
        lambda off: rnnt(off, width=512, layers=2, batch=32, times=100, labels=16, words=512), ("cudnn_rnn",), steps=2
    ),
    "rnnt_joint": Pair(
        lambda off: rnnt(off, width=1024, layers=2, batch=16, times=150, labels=32, words=1024),
        ("mixed_precision",),
        ("tf32",),
    ),
    "diffusion_average": Pair(
        lambda off: diffusion(off, width=32, batch=16, size=64, average=True), ("fused_optimizer",)
    ),
    "diffusion_defaults": Pair(
        lambda off: diffusion(off, width=96, batch=16, size=128, compile_=True),
        ("mixed_precision", "channels_last"),
        ("tf32", "compile"),
    ),
    "diffusion_noise": Pair(
        lambda off: diffusion(off, width=32, batch=32, size=192, host=True, compile_=True),
        ("pageable_copies",),
        ("compile",),
    ),
    "ppo_prefix": Pair(lambda off: ppo(off, width=1024, batch=64, new=128), ("kv_cache",), steps=2),
    "ppo_tokens": Pair(ppo, ("cuda_graphs",), steps=2),
    "ppo_stops": Pair(lambda off: ppo(off, layers=2), ("synchronising_reads",), steps=2),
    "ppo_tuned": Pair(lambda off: ppo(off, width=1024, batch=128), steps=2),
}

if __name__ == "__main__":
    main(PAIRS)
