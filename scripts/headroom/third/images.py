"""Third set, written from the list of levers alone: images.

ANSWERS (off: the levers that are off, the one expected to bring most first)
    vit_defaults            mixed_precision, flash_attention  (instead: tf32) fp32, attention written out
    resnet_planes           channels_last, cudnn_benchmark, synchronising_reads  bf16 in planes; the loss is read each step
    unet_single_slices      micro_batch, mixed_precision      one slice at a time, sixteen times
    denoiser_loop           fused_optimizer, channels_last    many small parameters, one after the other
    tuned_superresolution   nothing
"""

import itertools
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.nn.functional as F  # noqa: N812
from blocks import Block
from pairing import DEVICE, Off, Pair, Step, adam, autocast, compiled, main
from torch import Tensor, nn

CARD = DEVICE == "cuda"


def laid_out(off: Off) -> torch.memory_format:
    """The layout of weights and pictures."""
    return torch.contiguous_format if "channels_last" in off else torch.channels_last


class Vit(nn.Module):
    """Patches and a class token."""

    def __init__(self, side: int, width: int, layers: int, heads: int, written_out: bool) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.places = nn.Parameter(torch.zeros(1, (side // 16) ** 2 + 1, width))
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.blocks = nn.Sequential(*(Block(width, heads, written_out=written_out) for _ in range(layers)))
        self.last = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 1000))

    def forward(self, pictures: Tensor) -> Tensor:
        """Pictures to classes."""
        x = self.patches(pictures).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1), x], 1) + self.places
        found: Tensor = self.last(self.blocks(x)[:, 0])
        return found


def vit_defaults(off: Off) -> Step:
    """A vision transformer on pictures of 384, everything by default.

    The largest lever is ``mixed_precision``: the products run in plain fp32. The matrix of scores is 577 by 577 for each of
    six heads, a fifth of the step.
    """
    batch, side, width, layers, heads = (32, 384, 384, 8, 6) if CARD else (2, 32, 48, 1, 2)
    model = Vit(side, width, layers, heads, "flash_attention" in off).to(DEVICE)
    optimizer = adam(model.parameters(), off)
    pictures = torch.randn(batch, 3, side, side, device=DEVICE)
    classes = torch.randint(1000, (batch,), device=DEVICE)

    def step() -> None:
        with autocast(off):
            logits = model(pictures)
        F.cross_entropy(logits.float(), classes).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class Bottleneck(nn.Module):
    """Three convolutions and a shortcut."""

    def __init__(self, inner: int, channels: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inner, channels, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, stride, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(inplace=True),
            nn.Conv2d(channels, 4 * channels, 1, bias=False), nn.BatchNorm2d(4 * channels),
        )  # fmt: skip
        self.short = nn.Sequential(nn.Conv2d(inner, 4 * channels, 1, stride, bias=False), nn.BatchNorm2d(4 * channels))

    def forward(self, x: Tensor) -> Tensor:
        """A picture to a picture."""
        return F.relu(self.body(x) + self.short(x))


def resnet_planes(off: Off) -> Step:
    """A residual network in bf16 whose pictures lie in planes.

    The largest lever is ``channels_last``: the tensor cores want channels innermost, so cuDNN transposes around the
    convolutions and the batch norms of planes are slower. The algorithm search and the read of the loss bring little.
    """
    batch, side, channels = (128, 160, (64, 128, 256, 512)) if CARD else (2, 32, (4, 8))
    layers: list[nn.Module] = [nn.Conv2d(3, channels[0], 7, 2, 3, bias=False), nn.BatchNorm2d(channels[0]), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    inner = channels[0]
    for at, width in enumerate(channels):
        layers += [Bottleneck(inner, width, 2 if at else 1), Bottleneck(4 * width, width, 1)]
        inner = 4 * width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inner, 1000)]
    model = nn.Sequential(*layers).to(DEVICE, memory_format=laid_out(off))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=CARD)
    pictures = torch.randn(batch, 3, side, side, device=DEVICE).contiguous(memory_format=laid_out(off))
    classes = torch.randint(1000, (batch,), device=DEVICE)
    fast = compiled(model, off) if CARD else model
    total = 0.0

    def step() -> None:
        nonlocal total
        with autocast(off):
            logits = fast(pictures)
        loss = F.cross_entropy(logits.float(), classes)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if "synchronising_reads" in off:
            total += loss.item()

    return step


def twice(inner: int, outer: int) -> nn.Sequential:
    """Two convolutions with group norms."""
    return nn.Sequential(
        nn.Conv2d(inner, outer, 3, padding=1), nn.GroupNorm(8, outer), nn.SiLU(),
        nn.Conv2d(outer, outer, 3, padding=1), nn.GroupNorm(8, outer), nn.SiLU(),
    )  # fmt: skip


class Unet(nn.Module):
    """Down and up again, with shortcuts."""

    def __init__(self, shown: int, channels: tuple[int, ...], outer: int) -> None:
        super().__init__()
        widths = (shown, *channels)
        self.down = nn.ModuleList(twice(a, b) for a, b in itertools.pairwise(widths))
        self.up = nn.ModuleList(twice(a + b, b) for a, b in zip(channels[:0:-1], channels[-2::-1], strict=True))
        self.last = nn.Conv2d(channels[0], outer, 1)

    def forward(self, x: Tensor) -> Tensor:
        """A picture to one value for each pixel and output."""
        kept = []
        for at, layer in enumerate(self.down):
            x = layer(F.max_pool2d(x, 2) if at else x)
            kept.append(x)
        for layer, short in zip(self.up, kept[-2::-1], strict=True):
            x = layer(torch.cat([F.interpolate(x, scale_factor=2.0), short], 1))
        found: Tensor = self.last(x)
        return found


def unet_single_slices(off: Off) -> Step:
    """Segmentation of small slices, sixteen to an update.

    The largest lever is ``micro_batch``: one slice of 96 by 96 does not fill the card, so sixteen passes cost their launches.
    Bf16 alone brings nothing while the host is the limit.
    """
    slices, side, channels = (16, 96, (32, 64, 128, 256)) if CARD else (4, 16, (8, 16))
    model = Unet(1, channels, 4).to(DEVICE, memory_format=laid_out(off))
    optimizer = adam(model.parameters(), off)
    pictures = torch.randn(slices, 1, side, side, device=DEVICE)
    wanted = torch.randint(4, (slices, side, side), device=DEVICE)
    parts = slices if "micro_batch" in off else 1

    def step() -> None:
        for picture, want in zip(pictures.chunk(parts), wanted.chunk(parts), strict=True):
            with autocast(off):
                found = model(picture)
            (F.cross_entropy(found.float(), want) / parts).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class Denoiser(nn.Module):
    """Residual layers at half size, each shifted by the time."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.into, self.out = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        self.smaller = nn.Conv2d(width, width, 3, 2, 1)
        self.times = nn.ModuleList(nn.Linear(1, width) for _ in range(layers))
        self.layers = nn.ModuleList(twice(width, width) for _ in range(layers))

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Noisy pictures and their times to the noise."""
        wide = self.into(x)
        x = self.smaller(wide)
        for shift, layer in zip(self.times, self.layers, strict=True):
            x = x + layer(x + shift(time)[:, :, None, None])
        found: Tensor = self.out(wide + F.interpolate(x, scale_factor=2.0))
        return found


def denoiser_loop(off: Off) -> Step:
    """A diffusion model of 166 small parameters in bf16.

    The largest lever is ``fused_optimizer``: the loop issues about two thousand launches for parameters of a few KiB, as long
    as the passes take. ``channels_last`` saves the transposes of a GPU that mostly waits for the host.
    """
    batch, side, width, layers = (32, 64, 128, 16) if CARD else (2, 8, 8, 2)
    model = Denoiser(width, layers).to(DEVICE, memory_format=laid_out(off))
    optimizer = adam(model.parameters(), off)
    clean = torch.randn(batch, 3, side, side, device=DEVICE).contiguous(memory_format=laid_out(off))

    def step() -> None:
        time = torch.rand(batch, 1, device=DEVICE)
        noise = torch.randn_like(clean)
        part = time.view(-1, 1, 1, 1)
        with autocast(off):
            found = model(clean * (1 - part).sqrt() + noise * part.sqrt(), time)
        F.mse_loss(found.float(), noise).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class Residual(nn.Module):
    """Two convolutions without norms or biases."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.two = nn.Conv2d(width, width, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """A picture to a picture."""
        found: Tensor = x + self.two(F.relu(self.one(x), inplace=True))
        return found


def tuned_superresolution(off: Off) -> Step:
    """Residual layers of 512 channels without norms, bf16, channels last, searched algorithms.

    No lever: between two convolutions lies one pointwise kernel, so there is nothing to fuse.
    """
    batch, side, width, layers = (32, 48, 512, 6) if CARD else (2, 8, 8, 1)
    model = nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), *(Residual(width) for _ in range(layers)),
        nn.Conv2d(width, 12, 3, padding=1), nn.PixelShuffle(2),
    ).to(DEVICE, memory_format=laid_out(off))  # fmt: skip
    optimizer = adam(model.parameters(), off)
    small = torch.rand(batch, 3, side, side, device=DEVICE).contiguous(memory_format=laid_out(off))
    large = torch.rand(batch, 3, 2 * side, 2 * side, device=DEVICE)
    fast = compiled(model, off) if CARD else model

    def step() -> None:
        with autocast(off):
            found = fast(small)
        F.l1_loss(found.float(), large).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


PAIRS = {
    "vit_defaults": Pair(vit_defaults, ("mixed_precision", "flash_attention"), ("tf32",)),
    "resnet_planes": Pair(resnet_planes, ("channels_last", "cudnn_benchmark", "synchronising_reads"), ("compile",)),
    "unet_single_slices": Pair(unet_single_slices, ("micro_batch", "mixed_precision"), steps=2),
    "denoiser_loop": Pair(denoiser_loop, ("fused_optimizer", "channels_last"), steps=2),
    "tuned_superresolution": Pair(tuned_superresolution, ("compile",)),
}

if __name__ == "__main__":
    main(PAIRS)
