"""The parsers of /proc's text: names with odd characters, empty and torn files, fields that older kernels lack."""

import os

import pytest

from perfwatch_probes.filesystem import Absent
from perfwatch_probes.stat import (
    PAGE_BYTES,
    TICKS_PER_SECOND,
    parse_exec_start,
    parse_io,
    parse_pairs,
    parse_resident,
    parse_schedstat,
    parse_stat,
    parse_switches,
    parse_terminal,
)

STAT = (
    "412 (a) b) R 400 400 77 0 -1 4194304 1384 12 7 9 300 50 20 10 20 0 3 0 215891 165482496 2742 18446744073709551615"
    " 1 1 0 0 0 0 0 16781312 2 0 0 0 17 5 0 0 250 0 0 0 0 0 0 0 0 0 768"
)
SCHED = "python (412, #threads: 1)\n---\nse.exec_start              :       1006090.411271\nse.vruntime : 1.0\n"


def test_stat_fields() -> None:
    """Every field is taken from its place, in seconds where the kernel counts ticks."""
    stat = parse_stat(STAT)

    assert (stat.pid, stat.state, stat.parent_pid, stat.threads) == (412, "R", 400, 3)
    assert (stat.minor_faults, stat.major_faults) == (1384, 7)
    assert stat.cpu_seconds == 350 / TICKS_PER_SECOND
    assert stat.children_cpu_seconds == 30 / TICKS_PER_SECOND
    assert (stat.start_ticks, stat.processor) == (215891, 5)
    assert stat.block_delay_seconds == 250 / TICKS_PER_SECOND
    assert stat.wait_status == 768


@pytest.mark.parametrize(
    ("number", "device"), [(0, None), (34818, os.makedev(136, 2)), (136 << 8 | 44 | 1 << 20, os.makedev(136, 300))]
)
def test_controlling_terminal(number: int, device: int | None) -> None:
    """Its number is packed as in the kernel, with the low bits of the minor number below the major one; none is zero."""
    assert parse_terminal(STAT.replace(" 400 400 77 0 -1 ", f" 400 400 77 {number} -1 ")) == device


def test_name_may_hold_parentheses() -> None:
    """A program may call itself anything: the name ends at the last parenthesis."""
    assert parse_stat(STAT).name == "a) b"


@pytest.mark.parametrize("text", ["", "412 (python", "412 (python) R 400"])
def test_torn_stat_means_gone(text: str) -> None:
    """A file that empties while it is read belongs to a process that has just ended."""
    with pytest.raises(Absent, match="stat is empty or torn"):
        parse_stat(text)


def test_io_counters() -> None:
    """All counters of io, by the kernel's names."""
    text = "rchar: 5\nwchar: 6\nsyscr: 1\nsyscw: 2\nread_bytes: 0\nwrite_bytes: 4096\ncancelled_write_bytes: 0\n"

    assert parse_io(text)["write_bytes"] == 4096
    assert parse_io(text)["syscw"] == 2


@pytest.mark.parametrize("text", ["", "rchar: 5\nwchar: ", "rchar: 5\n"])
def test_torn_io_means_gone(text: str) -> None:
    """Half of the counters are no counters."""
    with pytest.raises(Absent):
        parse_io(text)


def test_resident_memory_in_bytes() -> None:
    """statm counts pages."""
    assert parse_resident("100 40 8 1 0 20 0\n") == (40 * PAGE_BYTES, 8 * PAGE_BYTES)
    with pytest.raises(Absent):
        parse_resident("")


def test_schedstat_in_seconds() -> None:
    """Time on a CPU, then time waiting for one."""
    assert parse_schedstat("1500000000 250000000 17\n") == (1.5, 0.25)
    with pytest.raises(Absent):
        parse_schedstat("")


def test_exec_start_in_seconds() -> None:
    """The moment of the last run, on the scheduler's clock; a kernel without it says nothing."""
    assert parse_exec_start(SCHED) == pytest.approx(1006.090411271)
    assert parse_exec_start("") is None
    assert parse_exec_start("se.exec_start : ?\n") is None
    assert parse_exec_start("se.exec_start : 0.000000\n") is None


def test_context_switches() -> None:
    """The two counts are told apart although one name ends like the other; without them they are unknown."""
    assert parse_switches("Name:\tx\nvoluntary_ctxt_switches:\t31\nnonvoluntary_ctxt_switches:\t7\n") == (31, 7)
    assert parse_switches("Name:\tx\nvoluntary_ctxt_switches:\t31\nnonvoluntary_ctxt_sw") == (31, None)
    assert parse_switches("") == (None, None)


def test_pairs_keep_colons_in_values() -> None:
    """Only the first colon separates."""
    assert parse_pairs("Name:\ta:b\nState:\tS (sleeping)\n\n") == {"Name": "a:b", "State": "S (sleeping)"}
