"""Second set, written from the list of levers alone: images.

ANSWERS (off: the levers that are off, the one expected to bring most first)
    masked_vit          checkpointing, fused_optimizer        every layer is recomputed though memory is free
    resnet_reporting    pageable_copies, synchronising_reads  batches from pageable memory; loss and accuracy read at each step
    float_unet          mixed_precision, channels_last        (instead: tf32)
    latent_transformer  micro_batch                           two samples at a time, sixteen times
    tuned_resnet, tuned_latents                               nothing
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.nn.functional as F  # noqa: N812
from pairing import DEVICE, Off, Pair, Step, adam, autocast, compiled, main
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

CARD = DEVICE == "cuda"


class Layer(nn.Module):
    """A pre-norm layer that may be told a condition."""

    def __init__(self, width: int, told: bool = False) -> None:
        super().__init__()
        self.heads = width // 64
        self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.told = nn.Linear(width, 6 * width) if told else None

    def forward(self, x: Tensor, condition: Tensor | None = None) -> Tensor:
        """[batch, length, width] to the same."""
        batch, length, width = x.shape
        kept: Any = (0.0, 0.0, 1.0) * 2
        if self.told is not None and condition is not None:
            kept = self.told(F.silu(condition))[:, None].chunk(6, -1)
        y = self.one(x) * (1 + kept[0]) + kept[1]
        q, k, v = self.qkv(y).view(batch, length, 3, self.heads, 64).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(mixed) * kept[2]
        return x + self.down(F.gelu(self.up(self.two(x) * (1 + kept[3]) + kept[4]))) * kept[5]


class Patches(nn.Module):
    """Patches of an image, layers over them, and what they say: classes, or patches again."""

    def __init__(self, width: int, layers: int, channels: int, size: int, patch: int, out: int, told: bool) -> None:
        super().__init__()
        self.cut = nn.Conv2d(channels, width, patch, patch)
        self.places = nn.Parameter(torch.zeros(1, (size // patch) ** 2, width))
        self.layers = nn.ModuleList(Layer(width, told) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, out)
        self.time = nn.Linear(64, width) if told else None
        self.recomputed = False

    def forward(self, images: Tensor, time: Tensor | None = None) -> Tensor:
        """Images to [batch, patches, out]."""
        x = self.cut(images).flatten(2).transpose(1, 2) + self.places
        condition = self.time(time) if self.time is not None and time is not None else None
        for layer in self.layers:
            x = checkpoint(layer, x, condition, use_reentrant=False) if self.recomputed else layer(x, condition)
        found: Tensor = self.head(self.norm(x))
        return found


def masked_vit(off: Off) -> Step:
    """A masked autoencoder: predict patches from the quarter that is left."""
    width, layers, size, batch = (1024, 16, 224, 64) if CARD else (64, 2, 32, 2)
    model = Patches(width, layers, 3, size, 16, 768, told=False).to(DEVICE)
    model.recomputed = "checkpointing" in off
    optimizer = adam(model.parameters(), off, weight_decay=0.05)
    images = torch.rand(batch, 3, size, size, device=DEVICE)
    hidden = (
        torch.rand(batch, 1, size // 16, size // 16, device=DEVICE)
        .lt(0.75)
        .repeat_interleave(16, 2)
        .repeat_interleave(16, 3)
    )

    def step() -> None:
        with autocast(off):
            found = model(images.masked_fill(hidden, 0.0))
            target = F.unfold(images, 16, stride=16).transpose(1, 2)
            loss = F.mse_loss(found, target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class Basic(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(into, out, 3, stride, 1, bias=False), nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.na, self.nb = nn.BatchNorm2d(out), nn.BatchNorm2d(out)
        self.short = nn.Conv2d(into, out, 1, stride, bias=False) if stride > 1 or into != out else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Features to features."""
        return F.relu(self.nb(self.b(F.relu(self.na(self.a(x))))) + self.short(x))


def residual(depth: int) -> nn.Sequential:
    """A residual network of basic blocks."""
    blocks: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    into = 64
    for stage in range(4):
        for number in range(depth):
            blocks.append(Basic(into, 64 << stage, 2 if stage and not number else 1))
            into = 64 << stage
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(into, 1000))


def resnet(off: Off, *, depth: int, batch: int, compile_: bool = False, given: bool = True) -> Step:
    """Classes of images that come from the host."""
    size = 224 if CARD else 32
    batch = batch if CARD else 4
    model = residual(depth).to(DEVICE, memory_format=torch.channels_last)
    called = torch.compile(model) if compile_ and CARD else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    held = [(torch.rand(batch, 3, size, size), torch.randint(1000, (batch,))) for _ in range(3)]
    fast = "pageable_copies" not in off
    if CARD and fast:
        held = [(images.pin_memory(), labels.pin_memory()) for images, labels in held]
    if not given:
        held = [(images.to(DEVICE), labels.to(DEVICE)) for images, labels in held]
    count, running = 0, [0.0, 0.0]
    total = torch.zeros(2, device=DEVICE)

    def step() -> None:
        nonlocal count
        images, labels = held[count % 3]
        count += 1
        images = images.to(DEVICE, non_blocking=fast, memory_format=torch.channels_last)
        labels = labels.to(DEVICE, non_blocking=fast)
        with autocast(off):
            found = called(images)
            loss = F.cross_entropy(found, labels)
        right = (found.argmax(1) == labels).float().mean()
        if "synchronising_reads" in off:
            running[0] += loss.item()
            running[1] += right.item()
        else:
            total.add_(torch.stack([loss.detach(), right]))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class Segmenter(nn.Module):
    """A U of convolutions with batch normalisation."""

    def __init__(self, width: int) -> None:
        super().__init__()

        def two(into: int, out: int) -> nn.Module:
            return nn.Sequential(
                nn.Conv2d(into, out, 3, padding=1), nn.BatchNorm2d(out), nn.LeakyReLU(0.1),
                nn.Conv2d(out, out, 3, padding=1), nn.BatchNorm2d(out), nn.LeakyReLU(0.1),
            )  # fmt: skip

        self.a, self.b, self.c = two(1, width), two(width, 2 * width), two(2 * width, 4 * width)
        self.up_b, self.up_a = (
            nn.ConvTranspose2d(4 * width, 2 * width, 2, 2),
            nn.ConvTranspose2d(2 * width, width, 2, 2),
        )
        self.d, self.e, self.last = two(4 * width, 2 * width), two(2 * width, width), nn.Conv2d(width, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Images to classes of pixels."""
        a = self.a(x)
        b = self.b(F.max_pool2d(a, 2))
        c = self.c(F.max_pool2d(b, 2))
        d = self.d(torch.cat([b, self.up_b(c)], 1))
        found: Tensor = self.last(self.e(torch.cat([a, self.up_a(d)], 1)))
        return found


def float_unet(off: Off) -> Step:
    """Segmentation as a medical project writes it."""
    width, batch, size = (64, 16, 256) if CARD else (8, 2, 32)
    layout: Any = torch.contiguous_format if "channels_last" in off else torch.channels_last
    model = Segmenter(width).to(DEVICE, memory_format=layout)
    optimizer = adam(model.parameters(), off)
    images = torch.rand(batch, 1, size, size, device=DEVICE).contiguous(memory_format=layout)
    labels = torch.randint(3, (batch, size, size), device=DEVICE)

    def step() -> None:
        with autocast(off):
            loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def latents(
    off: Off, *, batch: int = 32, parts: int = 1, width: int = 1024, layers: int = 12, compile_: bool = False
) -> Step:
    """Denoise latents under a time."""
    if not CARD:
        batch, parts, width, layers = 4, 2, 64, 2
    model = Patches(width, layers, 4, 32, 2, 16, told=True).to(DEVICE)
    called = compiled(model, off) if compile_ and CARD else model
    optimizer = adam(model.parameters(), off)
    if "micro_batch" in off:
        parts = batch // 2
    clean = torch.randn(parts, batch // parts, 4, 32, 32, device=DEVICE)

    def step() -> None:
        for part in clean:
            noise, time = torch.randn_like(part), torch.rand(len(part), 64, device=DEVICE)
            with autocast(off):
                found = called(part + time[:, :1, None, None] * noise, time)
                loss = F.mse_loss(found, F.unfold(noise, 2, stride=2).transpose(1, 2))
            (loss / parts).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


PAIRS = {
    "masked_vit": Pair(masked_vit, ("checkpointing", "fused_optimizer")),
    "resnet_reporting": Pair(lambda off: resnet(off, depth=2, batch=256), ("pageable_copies", "synchronising_reads")),
    "float_unet": Pair(float_unet, ("mixed_precision", "channels_last"), ("tf32",)),
    "latent_transformer": Pair(latents, ("micro_batch",), steps=2),
    "tuned_resnet": Pair(lambda off: resnet(off, depth=3, batch=512, compile_=True, given=False)),
    "tuned_latents": Pair(lambda off: latents(off, batch=128, compile_=True)),
}

if __name__ == "__main__":
    main(PAIRS)
