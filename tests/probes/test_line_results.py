"""What becomes of what a statement gets: a loop that waits for a free buffer waits for no data."""

import pytest

from perfwatch_probes.readings import DROPPED, FILLED
from perfwatch_probes.source import describe

LOOP = """\
for step in range(steps):
    loss = model(x)
    {line}
    {after}
"""


@pytest.mark.parametrize(
    ("line", "after", "result"),
    [
        ("pending.result()", "loss.backward()", DROPPED),
        ("if pending is not None: pending.result()", "loss.backward()", DROPPED),
        ("buf = free.get()", "buf[0].copy_(loss); full.put(buf)", FILLED),
        ("buf = free.get()", "buf.loss[step] = loss; full.put(buf)", FILLED),
        ("batch = ready.get()", "loss = model(batch)", ""),
        ("batch = ready.get()", "batch.x.add_(1); loss = model(batch)", ""),
        ("batch = ready.get()", "slot.copy_(batch)", ""),
        ("batch = ready.get()", "x, y = batch", ""),
        ("batch = ready.get()", "for one in batch: model(one)", ""),
        ("batch = ready.get()", "loss = model(batch['x'])", ""),
        ("batch = ready.get()", "batch.pin_memory()", ""),
        ("x, y = ready.get()", "pass", ""),
        ("self.batch = ready.get()", "pass", ""),
        ("count += 1", "pass", ""),
    ],
)
def test_what_a_loop_does_with_what_a_line_gets_is_read_from_its_text(line: str, after: str, result: str) -> None:
    """A value is used as soon as any reading of its name does anything but write into it or hand it on."""
    assert describe(LOOP.format(line=line, after=after), "/j/train.py", 3).result == result


def test_outside_of_a_loop_nothing_is_known() -> None:
    """A function may return what it gets to whoever called it."""
    assert describe("def take():\n    queue.get()\n", "/j/train.py", 2).result == ""
