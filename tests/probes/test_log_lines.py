"""How many lines of a log are like its last ones: numbers apart, whatever the log is about."""

import os
from pathlib import Path

import pytest

from perfwatch_probes.log_lines import TAIL_BYTES, alike_lines, count_alike, shape_of

STEPS = b"".join(b"step %5d loss %.4f lr 1.00e-03\n" % (step, 1.0 / step) for step in range(1, 31))
BAR = b"".join(
    "epoch 3:  {:3d}%|{}{}| {}/40 [00:{:02d}<00:09,  4.1it/s]\r".format(
        number, "\u2588" * number, " " * (40 - number), number, number
    ).encode()
    for number in range(40)
)
BANNER = b"".join(b"using %s of version 2.%d\n" % (name, at) for at, name in enumerate((b"torch", b"numpy", b"apex")))


@pytest.mark.parametrize(
    ("end", "count"),
    [
        (STEPS, 30),
        (BANNER + STEPS, 30),
        (BAR, 40),
        (STEPS + b"epoch 1 done: accuracy 0.71 in 40.2 s\nsaved to last.pt\n", 30),
        (STEPS + BANNER, 1),
        (b"waiting for the lock\n" * 50, None),
        (b"0.731 12 9.1e-05\n" * 25, 25),
        (b"step 1 \0\0\0 loss 2\n" * 30, None),
        (b"", None),
    ],
    ids=["steps", "banner", "bar", "summary", "banner_last", "no_numbers", "columns", "binary", "empty"],
)
def test_lines_like_the_last_ones_are_counted(end: bytes, count: int | None) -> None:
    """A progress bar's states too; a banner's lines differ in words, and a message without numbers counts nothing."""
    assert count_alike(end) == count


def lines_in(path: Path) -> int | None:
    """``alike_lines`` of a file that is open."""
    state = path.stat()
    return alike_lines(str(path), (state.st_dev, state.st_ino))


def test_of_a_long_log_the_end_tells_for_the_whole(tmp_path: Path) -> None:
    """Ten times what is read."""
    line = b"step 00001 loss 0.5\n"
    (tmp_path / "log").write_bytes(line * (10 * TAIL_BYTES // len(line)))

    assert lines_in(tmp_path / "log") == pytest.approx(10 * TAIL_BYTES // len(line), rel=0.01)


def test_looking_into_a_log_leaves_its_times_alone_and_a_pipe_is_not_read(tmp_path: Path) -> None:
    """What stands in a pipe is for somebody else."""
    (tmp_path / "log").write_bytes(STEPS)
    os.utime(tmp_path / "log", (1.0, 2.0))
    os.mkfifo(tmp_path / "fifo")
    lines_in(tmp_path / "log")

    assert (tmp_path / "log").stat().st_atime == 1.0
    with pytest.raises(ValueError, match="not a file of the kind"):
        lines_in(tmp_path / "fifo")


def test_another_file_of_that_path_tells_nothing(tmp_path: Path) -> None:
    """The log was renamed and begun anew, or its path leads elsewhere now."""
    (tmp_path / "log").write_bytes(STEPS)
    before = (tmp_path / "log").stat()
    (tmp_path / "log").rename(tmp_path / "log.1")
    (tmp_path / "log").write_bytes(STEPS)

    with pytest.raises(ValueError, match="another file"):
        alike_lines(str(tmp_path / "log"), (before.st_dev, before.st_ino))


def test_a_line_of_prose_with_a_number_is_no_line_of_a_log() -> None:
    """Beyond so many words."""
    assert shape_of(b"word " * 30 + b"1") is None
