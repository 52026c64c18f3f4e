"""Which loops come to their end by themselves, by their text alone."""

import pytest

from perfwatch.probes.source import describe


def kinds(text: str, line: int) -> tuple[str, ...]:
    """Of the loops around a line."""
    return describe(text, "/app/train.py", line).loops


@pytest.mark.parametrize(
    "loop",
    [
        "while t < end:\n    x = f(x)\n    t += dt\n",
        "while t < end and not done:\n    x = f(x)\n    t = t + dt\n",
        "while left > 0:\n    x = f(x)\n    left -= 1\n",
        "while len(out) < n:\n    x = f(x)\n    out.append(x)\n",
        "while self.step < self.most:\n    x = f(x)\n    self.step += 1\n",
        "for _ in range(3):\n    x = f(x)\n",
    ],
)
def test_a_loop_that_counts_comes_to_its_end(loop: str) -> None:
    """Each turn takes the tested counter on, whatever else it does."""
    assert kinds(loop, 2) == ("for",)


@pytest.mark.parametrize(
    "loop",
    [
        "while True:\n    x = f(x)\n",
        "while error > bound:\n    error = f(x)\n",
        "while scores[i % n] < best:\n    x = 1\n    i += 1\n",  # what is compared is another thing
        "while t < end:\n    if not f(x): continue\n    t += dt\n",
        "while t < end:\n    x = f(x)\n    if x: t += dt\n",
        "while len(batch) < n:\n    if fits(x): batch.append(x)\n    x = draw()\n",
        "while t < end:\n    x = f(x)\n    t += dt\n    if x: t = 0\n",
        "while not done and ready():\n    x = f(x)\n    i += 1\n",
        "for x in itertools.count():\n    x = f(x)\n",
    ],
)
def test_one_that_waits_for_a_condition_may_not(loop: str) -> None:
    """Nothing in it takes a counter on each time."""
    assert kinds(loop, 2) == ("while",)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def rows():\n    while True:\n        x = read()\n        yield x\n", True),
        ("def rows():\n    while True:\n        x = read()\n        def one():\n            yield x\n", False),
    ],
)
def test_a_loop_that_yields_hands_something_out(text: str, expected: bool) -> None:
    """A function that is made in it does not count."""
    assert describe(text, "/app/data.py", 3).hands_out is expected
