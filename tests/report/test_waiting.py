"""What the cards waited for, in words, as a table and as a flame graph: the same figures everywhere."""

import json

import pytest

from perfwatch.report.gpu_idle import Awaited, OffGpu
from perfwatch.report.waiting import flame, tree, waiting_lines, waiting_sum
from perfwatch_probes.readings import Frame

LOADER = Frame("_try_get_data", "/venv/lib/python3.12/site-packages/torch/utils/data/dataloader.py", 1291)
EPOCH, LOG = Frame("epoch", "/app/train.py", 50), Frame("log", "/app/train.py", 30)
MAIN = Frame("main", "/app/train.py", 9)


def found(idle: tuple[float, float] = (6.0, 4.0), told_apart: float = 0.95, source: str = "gpm") -> OffGpu:
    """Twenty seconds of looks, in which two lines were waited for."""
    awaited = (
        Awaited(0, (LOADER, EPOCH, MAIN), idle[0], 8.0),
        Awaited(0, (LOG, MAIN), idle[1], 4.0),
        Awaited(0, (MAIN,), 0.0, 8.0),
    )
    return OffGpu(awaited, 20.0, sum(idle), 60.0, 24.0, source, (0,), told_apart)


def test_the_table_names_the_programs_own_lines() -> None:
    """Not the library's: whoever reads it can change these."""
    lines = waiting_lines(found())

    assert [line.text for line in lines] == ["epoch (train.py:50)", "log (train.py:30)"]
    assert [line.share_of_idle for line in lines] == pytest.approx([0.6, 0.4])
    assert [line.share_of_time for line in lines] == pytest.approx([0.3, 0.2])


def test_the_sentence_shows_that_the_parts_add_up() -> None:
    """Measured while stacks were sampled, handed out, and over the whole recording."""
    text = waiting_sum(found())

    assert "no kernel was resident for 10 s, 50.0% of the time; the lines below add up to 10 s" in text
    assert "Over the whole recording it was 40.0%" in text
    assert "shorter than a look" not in text


def test_doubts_are_said() -> None:
    """Short phases, a card that tells little, and a card that hardly ever waits."""
    assert "they explain 30% of the differences" in waiting_sum(found(told_apart=0.3))
    assert "tells only whether a kernel was resident" in waiting_sum(found(source="nvml"))
    assert "nothing to gain" in waiting_sum(found((0.05, 0.01)))
    assert waiting_lines(found((0.05, 0.01))) == []


def test_the_boxes_of_the_flame_graph_are_as_wide_as_what_they_hold() -> None:
    """Callers are as wide as all that they call, side by side and the widest first."""
    root = tree(found().awaited)
    (main,) = root.inner.values()
    first, second = main.inner.values()

    assert (root.seconds, main.seconds) == (10.0, 10.0)
    assert (first.name, first.begins, first.seconds) == ("epoch (train.py:50)", 0.0, 6.0)
    assert (second.name, second.begins, second.seconds) == ("log (train.py:30)", 6.0, 4.0)
    assert (main.own, next(iter(first.inner.values())).own) == (True, False)


def test_the_flame_graph_is_plain_data() -> None:
    """What the page embeds: JSON, with every name in it."""
    text = json.dumps(flame(found()), default=str)

    assert "epoch (train.py:50)" in text


def test_a_stack_of_a_thousand_frames_is_drawn() -> None:
    """Recursion in the job is none in the report."""
    frames = tuple(Frame("down", "/app/tree.py", number) for number in range(1000))
    deep = OffGpu((Awaited(0, frames, 5.0, 5.0),), 10.0, 5.0, 10.0, 5.0, "gpm", (0,), 1.0)

    assert flame(deep)
