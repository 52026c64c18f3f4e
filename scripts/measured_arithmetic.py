"""How rightly the arithmetic rate of a card is told: loops that count their own FLOPs, beside what perfwatch makes of its counters.

    python scripts/measured_arithmetic.py                     every load, at full speed and with pauses: two minutes on one card
    python scripts/measured_arithmetic.py --seconds 5 --only 8192

Each load runs alone. ``told`` is tensor-active x clock x operations, ``corrected`` is that times what such a cycle brings
(``perfwatch.triage.questions.tensor_yield``); both are held against what the loop counts over the same time. Needs a card with
GPM (Hopper or newer), a Python in which perfwatch and a torch for that card are installed, and nothing else on the card.
"""

import argparse
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Self

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import linear, scaled_dot_product_attention

from perfwatch.triage.history import median
from perfwatch.triage.questions import tensor_tflops_at, tensor_yield
from perfwatch_probes.nvml_asking import Asking
from perfwatch_probes.nvml_description import describe
from perfwatch_probes.nvml_driver import DriverNvml
from perfwatch_probes.nvml_gpm import Gpm
from perfwatch_probes.readings import GpuActivity

TERA = 1e12
BURST_FLOPS = 2e12  # some 3 ms of an H200
WARM_SECONDS = 0.6
PAUSES = (0.0, 0.7)  # of the time
LOOK_SECONDS = 0.1
SM_CLOCK = 1  # NVML_CLOCK_SM


@dataclass(frozen=True)
class Load:
    """``burst`` runs ``flops`` operations; ``rate``: how many times as many of them a cycle does as of 16-bit ones."""

    burst: Callable[[], object]
    flops: float
    rate: float = 1.0


def product(rows: int, inner: int, columns: int, kind: torch.dtype = torch.bfloat16, rate: float = 1.0) -> Load:
    """A linear layer."""
    left, weight = (torch.randn(side, inner, device="cuda").to(kind) for side in (rows, columns))
    once = 2.0 * rows * inner * columns
    times = max(1, int(BURST_FLOPS / once))
    return Load(lambda: [linear(left, weight) for _ in range(times)], times * once, rate)


def batched(batch: int, rows: int, inner: int) -> Load:
    """Many small products that memory bounds."""
    left = torch.randn(batch, rows, inner, device="cuda", dtype=torch.bfloat16)
    right = left.transpose(1, 2).contiguous()
    once = 2.0 * batch * rows * inner * rows
    times = max(1, int(BURST_FLOPS / once))
    return Load(lambda: [torch.bmm(left, right) for _ in range(times)], times * once)


def attention(kernel: SDPBackend, length: int = 4096, width: int = 128) -> Load:
    """The forward pass of 64 heads, without a mask."""
    shape = (4, 16, length, width)
    query, key, value = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3))

    def burst() -> None:
        with sdpa_kernel(kernel):
            for _ in range(4):
                scaled_dot_product_attention(query, key, value)

    return Load(burst, 4 * 4.0 * 64 * length * length * width)


LOADS: dict[str, Callable[[], Load]] = {
    **{f"bf16 {side}": partial(product, side, side, side) for side in (1024, 2048, 4096, 8192, 12288)},
    "bf16 8192x4096x14336": partial(product, 8192, 4096, 14336),
    "bf16 2048x768x3072": partial(product, 2048, 768, 3072),
    "bf16 64 x 1024x64x1024": partial(batched, 64, 1024, 64),
    "fp16 4096": partial(product, 4096, 4096, 4096, torch.float16),
    "tf32 4096": partial(product, 4096, 4096, 4096, torch.float32, 0.5),
    "cuDNN attention": partial(attention, SDPBackend.CUDNN_ATTENTION),
    "FlashAttention": partial(attention, SDPBackend.FLASH_ATTENTION),
}


class Watcher:
    """Looks at a card as perfwatch does, ten times a second from a thread of its own: what a clock was while its work ran."""

    def __init__(self, nvml: DriverNvml) -> None:
        self._nvml = nvml
        self._card = nvml.card(0)
        self.gpu = describe(Asking(nvml, self._card), 0, "")
        self._units = Gpm(nvml, self._card, self.gpu.uuid)
        self._looks: list[tuple[GpuActivity, float]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Self:
        self._units.look(time.monotonic())
        self._thread.start()
        return self

    def __exit__(self, *ignored: object) -> None:
        self._over.set()
        self._thread.join()

    def clock_mhz(self) -> float:
        """The clock of the multiprocessors now."""
        return float(self._nvml.number("nvmlDeviceGetClockInfo", self._card, SM_CLOCK))

    def _watch(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            seen = self._units.look(time.monotonic())
            if seen is not None:
                self._looks.append((seen, self.clock_mhz()))

    def told(self) -> "Told | None":
        """What the looks come to; None where the card or its driver does not tell."""
        raw, corrected, clocks, busy, tensor = [], [], [], [], []
        for seen, clock in self._looks:
            peak = tensor_tflops_at(self.gpu, clock)
            if seen.tensor is None or peak is None:
                continue
            raw.append(seen.tensor * peak)
            corrected.append(raw[-1] * tensor_yield(self.gpu, seen.graphics, clock))
            clocks.append(clock)
            busy.append(seen.graphics or 0.0)
            tensor.append(seen.tensor)
        return Told(fmean(raw), fmean(corrected), fmean(clocks), fmean(busy), fmean(tensor)) if raw else None


@dataclass(frozen=True)
class Told:
    """TFLOP/s as counted by 16-bit operations, the clock in MHz, shares of the time."""

    raw: float
    corrected: float
    clock_mhz: float
    busy: float
    tensor: float


def measure(load: Load, pause: float, seconds: float, nvml: DriverNvml) -> str:
    """Run one load for a while; a line of the table."""
    rested: list[float] = []

    def bursts(until: float, after: Callable[[], object]) -> int:
        done = 0
        while (began := time.monotonic()) < until:
            load.burst()
            torch.cuda.synchronize()
            done += 1
            after()
            time.sleep((time.monotonic() - began) * pause / (1.0 - pause))
        return done

    bursts(time.monotonic() + WARM_SECONDS, lambda: None)
    watcher = Watcher(nvml)
    with watcher:
        began = time.monotonic()
        done = bursts(began + seconds, lambda: rested.append(watcher.clock_mhz()))
        own = done * load.flops / (time.monotonic() - began) / TERA
    told = watcher.told()
    if told is None:
        return "this card or its driver does not tell"
    raw, corrected = told.raw * load.rate, told.corrected * load.rate
    return (
        f"counts {own:7.1f}  told {raw:7.1f} ({raw / own - 1:+6.1%})  corrected {corrected:7.1f} ({corrected / own - 1:+6.1%})  "
        f"busy {told.busy:.0%}, tensor {told.tensor:.0%}, {told.clock_mhz:.0f} MHz, {median(rested):.0f} right after a burst"
    )


def main() -> None:
    """Print a table, in TFLOP/s."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--only", default="", help="loads with this in their name")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    nvml = DriverNvml()
    nvml.start()
    for name, make in LOADS.items():
        if options.only not in name:
            continue
        load = make()
        for pause in PAUSES:
            line = measure(load, pause, options.seconds, nvml)
            print(f"{name:24}{'with pauses' if pause else '':12}{line}", flush=True)
        del load
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
