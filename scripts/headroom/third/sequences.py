"""Third set, written from the list of levers alone: speech and proteins.

ANSWERS (off: the levers that are off, the one expected to bring most first)
    transducer_lattice   cuda_graphs, mixed_precision   the loss walks the lattice, one diagonal after the other
    speech_features      data_loading, fused_optimizer  spectra are computed in the training process
    padded_proteins      padding, flash_attention       every protein is padded to 1,024
    tuned_acoustic       nothing
    tuned_triangle       nothing
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from blocks import Block
from pairing import DEVICE, Off, Pair, Step, adam, autocast, captured, compiled, main
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

CARD = DEVICE == "cuda"
NEVER = -1e30


class Transducer(nn.Module):
    """An encoder of frames, a predictor that sees two words, and the joint network."""

    def __init__(self, width: int, layers: int, words: int) -> None:
        super().__init__()
        self.frames = nn.Linear(80, width)
        self.encoder = nn.Sequential(*(Block(width, max(1, width // 64)) for _ in range(layers)))
        self.words, self.predictor = nn.Embedding(words, width), nn.Conv1d(width, width, 2)
        self.joint = nn.Linear(width, words)

    def forward(self, frames: Tensor, ids: Tensor) -> Tensor:
        """[batch, time, 80] and [batch, words] to [batch, time, words + 1, vocabulary]."""
        heard = self.encoder(self.frames(frames))
        said = self.predictor(self.words(F.pad(ids, (2, 0))).transpose(1, 2)).transpose(1, 2)
        found: Tensor = self.joint(torch.tanh(heard[:, :, None] + said[:, None]))
        return found


def diagonals(x: Tensor) -> Tensor:
    """[batch, time, words] to [batch, time + words - 1, words]: row n holds the cells whose time and word add up to n."""
    batch, times, words = x.shape
    row = torch.arange(times + words - 1, device=x.device)[:, None] - torch.arange(words, device=x.device)
    moved = x.gather(1, row.clamp(0, times - 1).expand(batch, -1, -1))
    return moved.masked_fill((row < 0) | (row >= times), NEVER)


def lattice_loss(logits: Tensor, ids: Tensor) -> Tensor:
    """Minus the log probability of all paths through the lattice."""
    chances = torch.log_softmax(logits, -1)
    blank = diagonals(chances[..., 0])
    spoken = chances[:, :, :-1].gather(3, ids[:, None, :, None].expand(-1, logits.shape[1], -1, 1))[..., 0]
    label = diagonals(F.pad(spoken, (0, 1), value=NEVER))
    reached = torch.full_like(blank[:, 0], NEVER)
    reached[:, 0] = 0
    for row in range(blank.shape[1] - 1):
        onward = F.pad((reached + label[:, row])[:, :-1], (1, 0), value=NEVER)
        reached = torch.logaddexp(reached + blank[:, row], onward)
    return -(reached[:, -1] + chances[:, -1, -1, 0]).mean()


def transducer_lattice(off: Off) -> Step:
    """An RNN-T loss in plain torch.

    The largest lever is ``cuda_graphs``: the lattice has 160 diagonals of a few kernels each, forwards and backwards, on a few
    KiB. All shapes are fixed. The products in fp32 come second.
    """
    batch, times, said, words, width, layers = (8, 120, 40, 512, 512, 4) if CARD else (2, 6, 3, 8, 16, 1)
    model = Transducer(width, layers, words).to(DEVICE)
    optimizer = adam(model.parameters(), off, capturable=CARD)
    frames = torch.randn(batch, times, 80, device=DEVICE)
    ids = torch.randint(1, words, (batch, said), device=DEVICE)

    def step() -> None:
        with autocast(off):
            logits = model(frames, ids)
        lattice_loss(logits.float(), ids).backward()
        optimizer.step()
        optimizer.zero_grad()

    return captured(step, off)


class Utterances(Dataset[tuple[np.ndarray, int]]):
    """A few seconds of sound to the log of its spectrum, in numpy."""

    def __init__(self, seconds: int) -> None:
        self.samples = seconds * 16000
        self.sound = np.random.default_rng(1).standard_normal(self.samples + 160_000)
        self.window = np.hanning(400)
        self.bank = np.abs(np.random.default_rng(0).standard_normal((201, 80)))

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, at: int) -> tuple[np.ndarray, int]:
        sound = self.sound[at % 160_000 :][: self.samples]
        pieces = np.lib.stride_tricks.sliding_window_view(sound, 400)[::160] * self.window
        power = np.abs(np.fft.rfft(pieces)) ** 2
        return np.log(power @ self.bank + 1e-6).astype(np.float32), at % 32


class Listener(nn.Module):
    """A quarter of the frames, then transformer layers."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.fewer = nn.Sequential(
            nn.Conv1d(80, width, 3, 2, 1), nn.GELU(), nn.Conv1d(width, width, 3, 2, 1), nn.GELU()
        )
        self.blocks = nn.Sequential(*(Block(width, max(1, width // 64)) for _ in range(layers)))
        self.last = nn.Linear(width, 32)

    def forward(self, spectra: Tensor) -> Tensor:
        """[batch, time, 80] to one of 32 commands."""
        found: Tensor = self.last(self.blocks(self.fewer(spectra.transpose(1, 2)).transpose(1, 2)).mean(1))
        return found


def speech_features(off: Off) -> Step:
    """Spoken commands whose spectra are computed on the fly.

    The largest lever is ``data_loading``: without workers, 32 spectra take about 100 ms of the training process,
    many times what the card needs. The optimizer's loop is small beside it.
    """
    batch, seconds, width, layers = (32, 4, 512, 8) if CARD else (2, 1, 32, 1)
    slow = "data_loading" in off
    workers = 0 if slow or not CARD else 10
    loader = DataLoader(
        Utterances(seconds), batch, num_workers=workers, pin_memory=CARD, persistent_workers=workers > 0,
        prefetch_factor=2 if workers else None,
    )  # fmt: skip
    batches = iter(loader)
    model = Listener(width, layers).to(DEVICE)
    optimizer = adam(model.parameters(), off)

    def step() -> None:
        spectra, commands = (one.to(DEVICE, non_blocking=True) for one in next(batches))
        with autocast(off):
            logits = model(spectra)
        F.cross_entropy(logits.float(), commands).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class Residues(nn.Module):
    """A language model of proteins."""

    def __init__(self, width: int, layers: int, heads: int, length: int, written_out: bool) -> None:
        super().__init__()
        self.kinds, self.places = nn.Embedding(33, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads, written_out=written_out) for _ in range(layers))
        self.last = nn.Linear(width, 33)

    def forward(self, ids: Tensor, real: Tensor) -> Tensor:
        """[batch, length] to [batch, length, 33]."""
        x = self.kinds(ids) + self.places.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x, real[:, None, None])
        found: Tensor = self.last(x)
        return found


def padded_proteins(off: Off) -> Step:
    """Proteins of 64 to 512 residues, padded to 1,024.

    The largest lever is ``padding``: less than a third of the residues is real, and attention pays for the square of the
    length. With the lever on, the batch is sorted and cut into three parts, each as long as its longest. Attention written
    out with a mask is the second.
    """
    batch, most, width, layers, heads = (48, 1024, 512, 3, 8) if CARD else (6, 16, 16, 1, 2)
    model = Residues(width, layers, heads, most, "flash_attention" in off).to(DEVICE)
    optimizer = adam(model.parameters(), off)
    lengths = torch.randint(most // 16, most // 2 + 1, (batch,)).sort().values
    ids = torch.randint(33, (batch, most), device=DEVICE)
    parts = [(at, at + batch // 3, int(lengths[at + batch // 3 - 1])) for at in range(0, batch, batch // 3)]
    if "padding" in off:
        parts = [(0, batch, most)]
    real = torch.arange(most, device=DEVICE) < lengths.to(DEVICE)[:, None]
    total = int(lengths.sum())

    def step() -> None:
        for first, last, length in parts:
            shown, counted = ids[first:last, :length], real[first:last, :length]
            with autocast(off):
                logits = model(shown, counted)
            each = F.cross_entropy(logits.float().transpose(1, 2), shown, reduction="none")
            ((each * counted).sum() / total).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class Acoustic(nn.Module):
    """An LSTM of cuDNN and a class for each frame."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm, self.last = nn.LSTM(80, width, 3, batch_first=False), nn.Linear(width, 128)

    def forward(self, frames: Tensor) -> Tensor:
        """[time, batch, 80] to [time, batch, 128]."""
        found: Tensor = self.last(self.lstm(frames)[0])
        return found


def tuned_acoustic(off: Off) -> Step:
    """Three layers of LSTM over 1,024 utterances at once, in bf16.

    No lever: cuDNN's kernels are the step, and the batch fills the card.
    """
    times, batch, width = (128, 1024, 1024) if CARD else (4, 2, 8)
    model = Acoustic(width).to(DEVICE)
    optimizer = adam(model.parameters(), off)
    frames = torch.randn(times, batch, 80, device=DEVICE)
    wanted = torch.randint(128, (times * batch,), device=DEVICE)
    fast = compiled(model, off) if CARD else model

    def step() -> None:
        with autocast(off):
            logits = fast(frames).view(-1, 128)
        F.cross_entropy(logits.float(), wanted).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class Triangle(nn.Module):
    """Pairs of residues, updated through each third one; then a perceptron."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.sides, self.gates = nn.Linear(width, 2 * width), nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.perceptron = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """[residues, residues, width] to the same."""
        normed = self.norms[0](x)
        left, right, last = self.gates(normed).sigmoid().chunk(3, -1)
        one, two = self.sides(normed).chunk(2, -1)
        both = torch.einsum("ikd,jkd->ijd", left * one, right * two)
        x = x + last * self.out(self.norms[1](both))
        found: Tensor = x + self.perceptron(self.norms[2](x))
        return found


def tuned_triangle(off: Off) -> Step:
    """Triangle updates of a protein of 768 residues, in bf16, compiled.

    No lever: what can be fused is fused, and each kernel works on a hundred MiB or more.
    """
    residues, width, layers = (768, 128, 2) if CARD else (6, 8, 1)
    model = nn.Sequential(*(Triangle(width) for _ in range(layers)), nn.Linear(width, 64)).to(DEVICE)
    x = torch.randn(residues, residues, width, device=DEVICE)
    wanted = torch.randint(64, (residues * residues,), device=DEVICE)

    def loss() -> Tensor:
        return F.cross_entropy(model(x).view(-1, 64).float(), wanted)

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
    "transducer_lattice": Pair(transducer_lattice, ("cuda_graphs", "mixed_precision"), steps=1),
    "speech_features": Pair(speech_features, ("data_loading", "fused_optimizer")),
    "padded_proteins": Pair(padded_proteins, ("padding", "flash_attention")),
    "tuned_acoustic": Pair(tuned_acoustic, ("compile",)),
    "tuned_triangle": Pair(tuned_triangle),
}

if __name__ == "__main__":
    main(PAIRS)
