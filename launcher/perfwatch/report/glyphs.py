"""Bars and sparklines in characters: blocks where the terminal has them, letters where it has not."""

from collections.abc import Sequence

from rich.text import Text

BLOCKS, PLAIN_BLOCKS = "▁▂▃▄▅▆▇█", "_.-=+*#@"
FULL, PLAIN_FULL = {"works": "█", "spins": "▒", "waits": "·"}, {"works": "#", "spins": "%", "waits": "."}
COLOURS = {"works": "green", "spins": "red", "waits": "dim"}


def sparkline(values: Sequence[float], width: int, plain: bool, top: float | None = None) -> str:
    """The newest values, each as one character; from zero to ``top``, or to the largest of them."""
    shown = list(values)[-width:] if width > 0 else []
    largest = top if top is not None else max(shown, default=0.0)
    letters = PLAIN_BLOCKS if plain else BLOCKS
    if largest <= 0:
        return letters[0] * len(shown)
    return "".join(letters[min(len(letters) - 1, int(value / largest * (len(letters) - 1) + 0.5))] for value in shown)


def shares(works: float, spins: float, width: int, plain: bool) -> Text:
    """A bar of what a card did: it worked, a kernel only spun, it waited for the host."""
    letters = PLAIN_FULL if plain else FULL
    at_work = round(works * width)
    spinning = min(width - at_work, round(spins * width))
    counts = {"works": at_work, "spins": spinning, "waits": width - at_work - spinning}
    text = Text()
    for kind, count in counts.items():
        text.append(letters[kind] * count, COLOURS[kind])
    return text


def progress(done: float, width: int, plain: bool, style: str) -> Text:
    """A bar that fills; ``done`` from 0 to 1."""
    full = round(min(1.0, max(0.0, done)) * width)
    filled, empty = ("#", ".") if plain else ("━", "─")
    return Text(filled * full, style).append(empty * (width - full), "dim")
