"""Counters that wrap, made to grow for ever; where it cannot be known how often one has wrapped, nothing is claimed.

PCIe bytes are counted in 32 bits by some drivers ("Value can be wrapped", nvml.h): 4 GiB, which a link of today moves in 70 to 270 ms,
and between two looks lies a second. What NVML has besides (nvmlDeviceGetPcieThroughput) watches for 20 ms in each direction before it
comes back: with eight cards a third of every second, in which nothing else is looked at, for a guess from 2 % of the time.
"""

_WRAP = 1 << 32
_NEAR = 1 << 31  # a counter that needs to have grown by more than half of its range to have wrapped was reset instead
_FIRST_LANE = (
    250_000_000  # bytes a second of a PCIe lane of the first generation; each later one is at most twice as fast
)


def most_pcie_bytes(generation: int | None, width: int | None) -> float:
    """What a link moves in a second at most, in one direction; without end where the link is not known."""
    return float("inf") if not generation or not width else _FIRST_LANE * 2.0 ** (generation - 1) * width


class Unwrapped:
    """Remembers, for each name, what a counter has lost by wrapping or by a reset."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, int]] = {}
        self._lost: dict[str, int] = {}
        self._wide: set[str] = set()  # seen above 32 bits: these do not wrap
        self._torn: set[str] = set()  # these may have wrapped unseen: what they say no longer adds up

    def value(self, name: str, counted: int, now: float, most: float | None = None) -> int | None:
        """The counter as if it had never wrapped; None from when on it may have wrapped more than once between two looks.

        Args:
            name: of the counter.
            counted: what it says.
            now: seconds, of a clock that never goes back.
            most: by how much it can grow in a second, where it is so fast that this matters.
        """
        at, before = self._last.get(name, (now, counted))
        self._last[name] = now, counted
        # At most so much was counted since then.
        room = _NEAR if most is None else most * (now - at) if now > at else 0.0
        if counted >= _WRAP:
            self._wide.add(name)
        if room >= _WRAP:
            self._torn.add(name)
        wide = name in self._wide
        if name in self._torn and not wide:
            return None
        if counted < before:
            wrapped = not wide and counted + _WRAP - before <= room
            self._lost[name] = self._lost.get(name, 0) + (_WRAP if wrapped else before)
        return counted + self._lost.get(name, 0)
