"""How a short length of time, of a step or a window, is written: three figures in the unit that fits, and never a power of ten."""

_UNITS = (("s", 1.0), ("ms", 1e3), ("us", 1e6))
_WHOLE = 99.95  # from here on whole numbers have three figures


def short_time(seconds: float) -> str:
    """``1.5 s``, ``38.2 ms``, ``412 us``; ``3,600 s``."""
    unit, scale = next(((unit, scale) for unit, scale in _UNITS if seconds * scale >= 1), _UNITS[-1])
    value = seconds * scale
    return f"{value:,.0f} {unit}" if value >= _WHOLE else f"{value:.3g} {unit}"
