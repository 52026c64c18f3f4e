"""Third set, written from the list of levers alone: language models.

ANSWERS (off: the levers that are off, the one expected to bring most first)
    word_decoder          matrix_sizes, vocabulary_loss           a vocabulary of 50,257; logits in fp32
    checkpointed_encoder  checkpointing, fused_optimizer  each layer is computed again; memory is free
    grpo_full_prefix      kv_cache, synchronising_reads          each new token computes the whole prefix
    experts_offloaded     optimizer_on_cpu, mixed_precision      (instead: tf32)
    tuned_long_bytes      nothing
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.nn.functional as F  # noqa: N812
from blocks import Block
from pairing import DEVICE, Off, Pair, Step, adam, autocast, compiled, main
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

CARD = DEVICE == "cuda"


class Decoder(nn.Module):
    """Words to hidden states, and a projection back to the vocabulary."""

    def __init__(self, words: int, width: int, layers: int, length: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, max(1, width // 64), causal=True) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, ids: Tensor, pasts: list[list[Tensor]] | None = None) -> Tensor:
        """[batch, length] to hidden states; ``pasts`` holds the keys and values of each layer and grows."""
        start = pasts[0][0].shape[2] if pasts and pasts[0] else 0
        x = self.words(ids) + self.places.weight[start : start + ids.shape[1]]
        for at, block in enumerate(self.blocks):
            x = block(x, None, None if pasts is None else pasts[at])
        found: Tensor = self.norm(x)
        return found


def word_decoder(off: Off) -> Step:
    """A small decoder with a large vocabulary.

    The largest lever is ``matrix_sizes``: rows of 50,257 bf16 values are aligned to two bytes, so the three products of the
    projection, half of the arithmetic of the step, run on slow kernels. The loss in fp32 doubles the bytes of the logits.
    """
    batch, length, width, layers = (8, 1024, 768, 4) if CARD else (2, 8, 64, 1)
    words = (50257 if CARD else 101) if "matrix_sizes" in off else (50304 if CARD else 104)
    model = Decoder(words, width, layers, length).to(DEVICE)
    optimizer = adam(model.parameters(), off)
    ids = torch.randint(words, (batch, length + 1), device=DEVICE)

    def step() -> None:
        with autocast(off):
            logits = model.head(model(ids[:, :-1])).view(-1, words)
        if "vocabulary_loss" in off:
            logits = logits.float()
        F.cross_entropy(logits, ids[:, 1:].reshape(-1)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def checkpointed_encoder(off: Off) -> Step:
    """Masked words, bf16; each layer is checkpointed although the card is nearly empty.

    The largest lever is ``checkpointing``: one more forward pass is about a quarter of the step. The optimizer's
    loop over 75 parameters is about 900 launches, a few milliseconds of some eighty.
    """
    batch, length, width, layers, words = (128, 512, 768, 6, 8192) if CARD else (2, 8, 64, 2, 64)
    embedding = nn.Embedding(words, width).to(DEVICE)
    blocks = nn.ModuleList(Block(width, width // 64) for _ in range(layers)).to(DEVICE)
    head = nn.Linear(width, words).to(DEVICE)
    optimizer = adam([*embedding.parameters(), *blocks.parameters(), *head.parameters()], off)
    ids = torch.randint(words, (batch, length), device=DEVICE)
    masked = torch.randperm(batch * length, device=DEVICE)[: batch * length // 8]
    layers_run = [compiled(block, off) if CARD else block for block in blocks]

    def step() -> None:
        with autocast(off):
            x = embedding(ids)
            for block in layers_run:
                x = checkpoint(block, x, use_reentrant=False) if "checkpointing" in off else block(x)
            logits = head(x.view(-1, width)[masked])
        F.cross_entropy(logits.float(), ids.view(-1)[masked]).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def grpo_full_prefix(off: Off) -> Step:
    """Groups of completions are sampled, rewarded, and learned from.

    The largest lever is ``kv_cache``: 24 forward passes over about 400 tokens each, instead of one over 384 tokens and 23
    over one token. The read of "all have ended" after each token only costs once the cache makes the rollout a matter of launches.
    """
    prompts, group, asked, answered = (6, 8, 384, 24) if CARD else (2, 2, 6, 3)
    words, width, layers = (16384, 768, 4) if CARD else (64, 64, 2)
    model = Decoder(words, width, layers, asked + answered).to(DEVICE)
    optimizer = adam(model.parameters(), off)
    questions = torch.randint(words, (prompts, asked), device=DEVICE).repeat_interleave(group, 0)
    end = words - 1

    @torch.no_grad()
    def sampled() -> Tensor:
        ids, new = questions, questions
        pasts: list[list[Tensor]] | None = None if "kv_cache" in off else [[] for _ in range(layers)]
        ended = torch.zeros(len(ids), dtype=torch.bool, device=DEVICE)
        for _ in range(answered):
            logits = model.head(model(ids if pasts is None else new, pasts)[:, -1])
            new = torch.multinomial(torch.softmax(logits.float(), -1), 1)
            ids = torch.cat([ids, new], 1)
            ended = ended | (new[:, 0] == end)
            if "synchronising_reads" in off and bool(ended.all()):
                break
        return ids

    def step() -> None:
        with autocast(off):
            ids = sampled()
            rewards = (ids[:, asked:] % 7 == 0).float().mean(1).view(prompts, group)
            better = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
            logits = model.head(model(ids[:, :-1])[:, asked - 1 :])
        chances = -F.cross_entropy(logits.float().flatten(0, 1), ids[:, asked:].flatten(), reduction="none")
        ratio = torch.exp(chances - chances.detach()).view(len(ids), -1)
        (-(ratio * better.view(-1, 1))).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class Experts(nn.Module):
    """Two of several perceptrons for each token, each of which takes a bounded number of tokens."""

    def __init__(self, width: int, inner: int, experts: int) -> None:
        super().__init__()
        self.experts = experts
        self.norm, self.router = nn.LayerNorm(width), nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, inner) * width**-0.5)
        self.down = nn.Parameter(torch.randn(experts, inner, width) * inner**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """[tokens, width] to the same."""
        tokens, width = x.shape
        room = tokens * 2 * 5 // (self.experts * 4)
        normed = self.norm(x)
        weights, chosen = torch.softmax(self.router(normed).float(), -1).topk(2)
        flat, order = chosen.flatten().sort(stable=True)
        counts = (flat[:, None] == torch.arange(self.experts, device=x.device)).sum(0)
        place = torch.arange(len(flat), device=x.device) - (counts.cumsum(0) - counts)[flat]
        slot = torch.where(place < room, flat * room + place, self.experts * room)
        sent = normed.new_zeros(self.experts * room + 1, width).index_copy(0, slot, normed[order // 2])
        worked = F.gelu(sent[:-1].view(self.experts, room, width) @ self.up) @ self.down
        back = torch.cat([worked.flatten(0, 1), worked.new_zeros(1, width)])[slot]
        return x.index_add(0, order // 2, (back * weights.flatten()[order, None]).to(x.dtype))


def experts_offloaded(off: Off) -> Step:
    """A mixture of experts; parameters and moments of the optimizer live on the CPU.

    The largest lever is ``optimizer_on_cpu``: 75 million gradients and parameters cross the bus in each step, and the CPU
    updates them at a hundredth of the card's memory bandwidth. Products in fp32 are some 30 ms beside it.
    """
    tokens, width, inner, experts, layers = (8192, 768, 1536, 16, 2) if CARD else (32, 16, 32, 4, 2)
    model = nn.Sequential(*(Experts(width, inner, experts) for _ in range(layers)), nn.Linear(width, 256)).to(DEVICE)
    shown = list(model.parameters())
    away = "optimizer_on_cpu" in off
    masters = [nn.Parameter(one.detach().to("cpu", copy=True)) for one in shown] if away else shown
    optimizer = adam(masters, off)
    x = torch.randn(tokens, width, device=DEVICE)
    wanted = torch.randint(256, (tokens,), device=DEVICE)

    def step() -> None:
        with autocast(off):
            logits = model(x)
        F.cross_entropy(logits.float(), wanted).backward()
        if away:
            for master, one in zip(masters, shown, strict=True):
                assert one.grad is not None
                master.grad = one.grad.cpu()
                one.grad = None
        optimizer.step()
        optimizer.zero_grad()
        if away:
            with torch.no_grad():
                for master, one in zip(masters, shown, strict=True):
                    one.copy_(master)

    return step


def tuned_long_bytes(off: Off) -> Step:
    """Bytes of long documents: causal flash attention over 49,152 of them is nine tenths of the step; the rest is compiled.

    No lever: the attention kernel is the step.
    """
    length, width, layers, words = (49152, 1024, 2, 256) if CARD else (32, 64, 1, 16)
    model = Decoder(words, width, layers, length).to(DEVICE)
    ids = torch.randint(words, (1, length + 1), device=DEVICE)

    def loss() -> Tensor:
        return F.cross_entropy(model.head(model(ids[:, :-1]))[0], ids[0, 1:])

    fast = compiled(loss, off) if CARD else loss
    optimizer = adam(model.parameters(), off)

    def step() -> None:
        with autocast(off):
            found = fast()
        found.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


PAIRS = {
    "word_decoder": Pair(word_decoder, ("matrix_sizes", "vocabulary_loss")),
    "checkpointed_encoder": Pair(checkpointed_encoder, ("checkpointing", "fused_optimizer"), ("compile",)),
    "grpo_full_prefix": Pair(grpo_full_prefix, ("kv_cache", "synchronising_reads"), steps=1),
    "experts_offloaded": Pair(experts_offloaded, ("optimizer_on_cpu", "mixed_precision"), ("tf32",)),
    "tuned_long_bytes": Pair(tuned_long_bytes),
}

if __name__ == "__main__":
    main(PAIRS)
