"""A sampler on a clock that stands still, for tests of what becomes of what the driver says."""

from collections.abc import Iterable
from typing import TypeVar

from perfwatch_probes.nvml_gpm import REFRESH_SECONDS
from perfwatch_probes.nvml_sampler import Sampler
from perfwatch_probes.nvml_thinning import Timed
from perfwatch_probes.readings import Reading
from tests.nvml_layer import IDLE, FakeNvml

HALF = IDLE | {1: 50.0, 2: 40.0}
R = TypeVar("R", bound=Reading)


class Clock:
    """Stands still until it is told to move."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Seconds."""
        return self.now


class Watched:
    """A sampler with full detail, on a clock of its own."""

    def __init__(self, nvml: FakeNvml) -> None:
        self.clock = Clock()
        self.sampler = Sampler(nvml, self.clock, wall=self.clock)
        self.sampler.attend()
        self.described = self.sampler.start()

    def after(self, seconds: float = REFRESH_SECONDS) -> list[Timed]:
        """The next round, so much later."""
        self.clock.now += seconds
        return self.sampler.round()


def of(kind: type[R], readings: Iterable[Timed]) -> list[R]:
    """Those of one kind."""
    return [one for _, one in readings if isinstance(one, kind)]
