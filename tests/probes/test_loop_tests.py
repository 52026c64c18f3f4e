"""What a loop tests between a line and its backward pass or its step."""

import pytest

from perfwatch_probes.source import describe

FLAGGED = """\
for x in loader:
    loss = model(x)
    if train:
        loss.backward()
        optimizer.step()
"""
ACCUMULATED = """\
for number, x in enumerate(loader):
    loss = model(x)
    loss.backward()
    if number == last or number > 3:
        optimizer.step()
"""
COUNTED = """\
while True:
    if batch is None:
        continue
    loss = model(x)
    loss.backward(); done += 1
    if done < self.rounds:
        continue
    optimizer.step()
"""
GUARDED = """\
for x in loader:
    loss = model(x)
    if not torch.isfinite(loss):
        continue
    with autocast():
        if loss < limit:
            loss.backward()
    if self.every.due(x):
        optimizer.step()
"""
PLAIN = """\
for x in loader:
    def closure():
        if train:
            model(x).backward()
    optimizer.step(closure)
"""


@pytest.mark.parametrize(
    ("program", "line", "passes_if", "steps_if"),
    [
        (FLAGGED, 2, ("flag",), ("flag",)),
        (FLAGGED, 4, (), ()),  # who stands at it has passed the test
        (ACCUMULATED, 2, (), ("count",)),
        (COUNTED, 4, (), ("count",)),
        (GUARDED, 2, ("finite", "value"), ("finite", "value")),
        (PLAIN, 5, (), ()),
    ],
)
def test_the_tests_between_a_line_and_what_it_makes_are_told_by_their_kind(
    program: str, line: int, passes_if: tuple[str, ...], steps_if: tuple[str, ...]
) -> None:
    """A flag, a count, whether something is finite, another value."""
    found = describe(program, "/t.py", line)

    assert (found.passes_if, found.steps_if) == (passes_if, steps_if)
