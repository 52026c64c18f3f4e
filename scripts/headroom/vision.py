"""ViT, ResNet, UNet.

ANSWERS (off: the levers that are off, the one expected to bring most first)
    vit_float32         mixed_precision              (instead: tf32)
    vit_small           cuda_graphs                  (instead: compile)
    resnet_layout       channels_last
    resnet_defaults     mixed_precision, channels_last
    resnet_loading      data_loading
    resnet_shapes       cudnn_search                 searching for the best convolution at each new shape
    unet_eager          compile
    unet_defaults       channels_last, cudnn_benchmark
    vit_tuned, resnet_tuned, unet_tuned              nothing
"""

import itertools
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from pairing import DEVICE, Off, Pair, Step, adam, autocast, captured, compiled, main
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from transformer import Transformer


class ViT(nn.Module):
    """Patches, transformer, one linear layer."""

    def __init__(self, width: int, layers: int, size: int, kind: str) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.body = Transformer(width, layers, width // 64, 0, length=(size // 16) ** 2, causal=False, kind=kind)
        self.head = nn.Linear(width, 1024)

    def forward(self, x: Tensor) -> Tensor:
        """Images to classes."""
        return self.head(self.body(self.patches(x).flatten(2).transpose(1, 2)).mean(1))


class Bottleneck(nn.Module):
    """ResNet's."""

    def __init__(self, into: int, inner: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(into, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(inplace=True),
            nn.Conv2d(inner, inner, 3, stride, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(inplace=True),
            nn.Conv2d(inner, 4 * inner, 1, bias=False), nn.BatchNorm2d(4 * inner),
        )  # fmt: skip
        self.short: nn.Module = nn.Identity()
        if stride > 1 or into != 4 * inner:
            self.short = nn.Sequential(nn.Conv2d(into, 4 * inner, 1, stride, bias=False), nn.BatchNorm2d(4 * inner))

    def forward(self, x: Tensor) -> Tensor:
        """Features to features."""
        return F.relu(self.body(x) + self.short(x))


class ResNet(nn.Module):
    """ResNet-50."""

    def __init__(self, depths: tuple[int, ...] = (3, 4, 6, 3)) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        blocks: list[nn.Module] = []
        into = 64
        for stage, depth in enumerate(depths):
            for number in range(depth):
                blocks.append(Bottleneck(into, 64 << stage, 2 if stage and not number else 1))
                into = 256 << stage
        self.body = nn.Sequential(*blocks)
        self.head = nn.Linear(into, 1000)

    def forward(self, x: Tensor) -> Tensor:
        """Images to classes."""
        return self.head(self.body(self.stem(x)).mean((2, 3)))


class Double(nn.Module):
    """Two convolutions with group normalisation and SiLU."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(into, out, 3, padding=1), nn.GroupNorm(16, out), nn.SiLU(),
            nn.Conv2d(out, out, 3, padding=1), nn.GroupNorm(16, out), nn.SiLU(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Features to features."""
        return self.body(x)


class UNet(nn.Module):
    """Down, up, with skips."""

    def __init__(self, width: int, levels: int, channels: int = 3) -> None:
        super().__init__()
        sizes = [width << level for level in range(levels)]
        self.first = Double(channels, width)
        self.down = nn.ModuleList(Double(a, b) for a, b in itertools.pairwise(sizes))
        self.up = nn.ModuleList(Double(a + b, a) for a, b in itertools.pairwise(sizes))
        self.last = nn.Conv2d(width, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Images to images."""
        kept = [self.first(x)]
        for down in self.down:
            kept.append(down(F.max_pool2d(kept[-1], 2)))
        x = kept.pop()
        for up in reversed(self.up):
            x = up(torch.cat([F.interpolate(x, scale_factor=2), kept.pop()], 1))
        return self.last(x)


def trained(
    model: Any, images: Any, target: Tensor, off: Off, *, compile_: bool = False, graphed: bool = False
) -> Step:
    """A step of a model on images from a function; the target decides the loss."""
    layout: Any = torch.contiguous_format if "channels_last" in off else torch.channels_last
    model = model.to(DEVICE, memory_format=layout)
    optimizer = adam(model.parameters(), off, capturable=graphed and DEVICE == "cuda")
    called = compiled(model, off) if compile_ else model

    def step() -> None:
        given = images().contiguous(memory_format=layout)
        with autocast(off):
            found = called(given)
            loss = (
                F.mse_loss(found, target)
                if target.is_floating_point()
                else F.cross_entropy(found, target[: len(given)])
            )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=not graphed)

    return captured(step, off) if graphed else step


def fixed(*shape: int) -> Any:
    """The same images at each step, on the card."""
    images = torch.rand(*shape, device=DEVICE)
    return lambda: images


def classes(batch: int) -> Tensor:
    """Targets."""
    return torch.randint(1000, (batch,), device=DEVICE)


def vit(off: Off, width: int = 768, layers: int = 12, batch: int = 64, compile_: bool = False) -> Step:
    """A ViT on images of 224."""
    return trained(ViT(width, layers, 224, "sdpa"), fixed(batch, 3, 224, 224), classes(batch), off, compile_=compile_)


def vit_small(off: Off) -> Step:
    """A small ViT at a small batch: the card waits for launches. One lever compiles, the other captures the step."""
    images, target = fixed(8, 3, 224, 224), classes(8)
    compile_ = "compile" not in off
    graphed = "cuda_graphs" not in off
    return trained(ViT(192, 12, 224, "sdpa"), images, target, off, compile_=compile_, graphed=graphed)


def resnet(off: Off, batch: int = 128, compile_: bool = False) -> Step:
    """ResNet-50 on images of 224."""
    return trained(ResNet(), fixed(batch, 3, 224, 224), classes(batch), off, compile_=compile_)


class Decoded(Dataset[Tensor]):
    """Images that cost the host some milliseconds each."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> Tensor:
        noise = np.random.default_rng(index).standard_normal((3, 160, 160), dtype=np.float32)
        for _ in range(3):
            noise = np.tanh(noise + 0.1)
        return torch.from_numpy(noise)


def resnet_loading(off: Off) -> Step:
    """ResNet-18-like on images that are decoded in the training process, or by workers."""
    batch = 64
    away = {"num_workers": 10, "prefetch_factor": 4, "persistent_workers": True} if "data_loading" not in off else {}
    batches = iter(DataLoader(Decoded(), batch, pin_memory=DEVICE == "cuda", **away))
    return trained(ResNet((2, 2, 2, 2)), lambda: next(batches).to(DEVICE, non_blocking=True), classes(batch), off)


def resnet_shapes(off: Off) -> Step:
    """Images whose size changes from step to step, for ever new."""
    torch.backends.cudnn.benchmark_limit = 10
    images = torch.rand(32, 3, 400, 400, device=DEVICE)
    sizes = itertools.cycle([(160 + 2 * (7 * one % 97), 160 + 2 * (11 * one % 89)) for one in range(97 * 89)])

    def cut() -> Tensor:
        high, wide = next(sizes)
        return images[:, :, :high, :wide]

    step = trained(ResNet((2, 2, 2, 2)), cut, classes(32), off)

    def chosen() -> None:
        torch.backends.cudnn.benchmark = "cudnn_search" in off
        step()

    return chosen


def unet(off: Off, width: int = 96, batch: int = 16, size: int = 192, compile_: bool = False) -> Step:
    """A UNet on images."""
    return trained(
        UNet(width, 4),
        fixed(batch, 3, size, size),
        torch.rand(batch, 3, size, size, device=DEVICE),
        off,
        compile_=compile_,
    )


PAIRS = {
    "vit_float32": Pair(vit, ("mixed_precision",), ("tf32",)),
    "vit_small": Pair(vit_small, ("cuda_graphs",), ("compile",)),
    "resnet_layout": Pair(lambda off: resnet(off, compile_=True), ("channels_last",), ("compile",)),
    "resnet_defaults": Pair(
        lambda off: resnet(off, compile_=True), ("mixed_precision", "channels_last"), ("tf32", "compile")
    ),
    "resnet_loading": Pair(resnet_loading, ("data_loading",)),
    "resnet_shapes": Pair(resnet_shapes, ("cudnn_search",)),
    "unet_eager": Pair(lambda off: unet(off, width=64, compile_=True), ("compile",)),
    "unet_defaults": Pair(lambda off: unet(off, compile_=True), ("channels_last", "cudnn_benchmark"), ("compile",)),
    "vit_tuned": Pair(lambda off: vit(off, batch=256, layers=8, compile_=True)),
    "resnet_tuned": Pair(lambda off: resnet(off, 256, compile_=True)),
    "unet_tuned": Pair(lambda off: unet(off, width=128, batch=16, compile_=True)),
}

if __name__ == "__main__":
    main(PAIRS)
