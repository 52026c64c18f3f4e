"""Counters of 32 bits that wrap, made to grow for ever."""

_WRAP = 1 << 32
_NEAR = 1 << 31  # a counter that falls by more than half of its range has wrapped; one that falls by less was reset


class Unwrapped:
    """Remembers, for each name, what a counter has lost by wrapping or by a reset."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._lost: dict[str, int] = {}

    def value(self, name: str, counted: int | None) -> int | None:
        """The counter as if it had never wrapped; None stays None."""
        if counted is None:
            return None
        before = self._last.get(name, 0)
        if counted < before:
            wrapped = before < _WRAP and before - counted > _NEAR
            self._lost[name] = self._lost.get(name, 0) + (_WRAP if wrapped else before)
        self._last[name] = counted
        return counted + self._lost.get(name, 0)
