"""The lanes of the timeline: what a line means is what its key says, and what was not read is not drawn."""

import math
import re

import msgspec
import pytest

from perfwatch.recording.recording import Record
from perfwatch.report.lanes import MOST_POINTS, Lane, Line, card_lanes, fitted, host_lane, lanes_of, step_lane
from perfwatch.report.timeline import WIDTH, DrawnLane, drawn, time_ticks
from perfwatch.triage.history import History
from perfwatch_probes import readings as r

SPINNING = {"graphics": 1.0, "dram": 0.0, "tensor": 0.0}
WORKING = {"graphics": 0.8, "dram": 0.5, "tensor": 0.4}


def history(*looks: tuple[float, r.Reading]) -> History:
    """Readings at their times."""
    return History([Record(at, reading) for at, reading in looks], max(at for at, _ in looks))  # type: ignore[arg-type]


def activity(at: float, **units: float) -> tuple[float, r.Reading]:
    """One look at a card."""
    return at, msgspec.structs.replace(r.GpuActivity(uuid="GPU-0", interval_seconds=1.0), **units)


def host(at: float, busy: float, **changes: object) -> tuple[float, r.Reading]:
    """One look at a machine of which so much is busy."""
    facts: dict[str, object] = {
        "cpus_online": 10, "user_seconds": at * busy * 10, "system_seconds": 0.0, "idle_seconds": at * (1 - busy) * 10,
        "iowait_seconds": 0.0, "steal_seconds": 0.0, "memory_total_bytes": 100, "memory_available_bytes": 60, **changes,
    }  # fmt: skip
    return at, r.Host(**facts)  # type: ignore[arg-type]


def values(lane: Lane, name: str) -> list[float]:
    """Of one line."""
    return [value for line in lane.lines if line.name == name for _, value in line.points]


def test_a_kernel_that_spins_is_no_work() -> None:
    """Resident for all of the time, and nothing moves."""
    (lane,) = card_lanes(history(activity(1.0, **WORKING), activity(2.0, **SPINNING)))

    assert (values(lane, "works"), values(lane, "spins")) == ([0.8, 0.0], [0.0, 1.0])


def test_a_card_that_does_not_tell_what_it_does_says_so() -> None:
    """Utilisation is "a kernel was resident", and the lane is called that."""
    (lane,) = card_lanes(history((1.0, r.GpuSample(uuid="GPU-0", utilisation=1.0))))

    assert [line.name for line in lane.lines] == ["a kernel is resident"]
    assert "may work or spin" in lane.note


def test_shares_of_the_machine_are_growth_of_counters() -> None:
    """Busy CPU time as a share of all, pressure as a share of time, memory as it is."""
    pressure = {"io": r.Pressure(some_microseconds=500_000, full_microseconds=0)}
    none = {"io": r.Pressure(some_microseconds=0, full_microseconds=0)}
    lane = host_lane(history(host(10.0, 0.3, pressure=none), host(11.0, 0.3, pressure=pressure)))

    assert lane is not None
    assert values(lane, "CPUs busy") == [pytest.approx(0.3)]
    assert values(lane, "io pressure") == [pytest.approx(0.5)]
    assert values(lane, "memory in use") == [pytest.approx(0.4)] * 2


def test_a_counter_that_went_back_is_no_negative_share() -> None:
    """The machine was restarted, or the counter wrapped."""
    lane = host_lane(history(host(10.0, 0.3), host(11.0, 0.3, user_seconds=1.0)))

    assert lane is not None
    assert values(lane, "CPUs busy") == []


def test_without_an_agent_there_is_no_lane_of_steps() -> None:
    """Missing is not zero."""
    assert step_lane(history(host(1.0, 0.1))) is None
    assert lanes_of(history((1.0, r.StackFailure(pid=7, message="")))) == []


def test_a_line_is_broken_where_nothing_was_read() -> None:
    """A watcher that was suspended has seen nothing of the job."""
    points = (*((float(second), 1.0) for second in range(10)), *((float(second), 1.0) for second in range(60, 70)))
    (line,) = fitted(Lane("power", "watts", (Line("gpu 0", points),))).lines

    assert [at for at, value in line.points if math.isnan(value)] == [60.0]


def test_a_long_recording_is_shown_as_means_over_equal_spans() -> None:
    """No line has more points than a screen has columns, and the longest step is not lost in a mean."""
    points = tuple((float(second), 5.0 if second == 1234 else 1.0) for second in range(10_000))
    lane = fitted(Lane("step time", "seconds", (Line("mean", points), Line("longest", points, "longest"))))
    mean, longest = ([value for _, value in line.points] for line in lane.lines)

    assert len(mean) <= MOST_POINTS + 1
    assert max(longest) == 5.0
    assert max(mean) < 2.0


def read(lane: DrawnLane, name: str, seconds: float) -> list[list[tuple[float, float]]]:
    """What a line shows, as a reader of its path finds it: pieces of (time, value)."""
    (line,) = (one for one in lane.lines if one.name == name)
    pieces: list[list[tuple[float, float]]] = []
    last, x, y = "", 0, 0
    for command, rest in re.findall(r"([MVlh])([^MVlh]*)", line.path):
        numbers = [int(one) for one in re.findall(r"-?\d+", rest)]
        if command == "M":
            x, y = numbers
            pieces.append([] if line.filled else [(x, y)])
        elif command == "V" and last == "M":
            y = numbers[0]
            pieces[-1].append((x, y))
        elif command == "l":
            for right, down in zip(numbers[::2], numbers[1::2], strict=True):
                x, y = x + right, y + down
                pieces[-1].append((x, y))
        last = command
    return [[(x / WIDTH * seconds, (lane.height - y) * lane.unit) for x, y in piece] for piece in pieces]


@pytest.mark.parametrize(
    ("kind", "card", "name", "shown"),
    [
        ("share", True, "works", [0.8125, 0.25, 1.0]),
        ("share", False, "CPUs busy", [0.0, 0.4, 0.3]),
        ("watts", False, "gpu 0", [698.4, 71.6, 300.0]),
        ("seconds", False, "longest", [0.02413, 31.7, 0.0244]),
    ],
)
def test_a_drawn_line_shows_what_was_read(kind: str, card: bool, name: str, shown: list[float]) -> None:
    """Within a thousandth of the usual value: also where one step took a thousand times as long as the others."""
    middle = sorted(shown)[1]
    points = tuple(zip((0.0, 40.0, 50.0), shown, strict=True))

    (piece,) = read(drawn(Lane(name, kind, (Line(name, points),), card=card), 100.0), name, 100.0)

    assert [at for at, _ in piece] == pytest.approx([0.0, 40.0, 50.0], abs=0.01)
    assert [value for _, value in piece] == pytest.approx(shown, abs=max(0.0005, 0.01 * middle))


def test_a_gap_is_not_bridged_and_a_level_stretch_keeps_its_ends() -> None:
    """Missing is not zero; and ten equal values are two points."""
    points = (*((float(at), 0.5) for at in range(10)), (10.0, math.nan), (30.0, 0.7))
    lane = drawn(Lane("gpu 0", "share", (Line("works", points), Line("tensor cores", points)), card=True), 40.0)

    for name in ("works", "tensor cores"):
        assert read(lane, name, 40.0) == [[(0.0, 0.5), (9.0, 0.5)], [(30.0, pytest.approx(0.7))]]


@pytest.mark.parametrize(
    ("seconds", "labels"),
    [
        (0.5, ["11:51:24.00", "11:51:24.10", "11:51:24.20", "11:51:24.30", "11:51:24.40", "11:51:24.50"]),
        (33.0, ["11:51:25", "11:51:30", "11:51:35", "11:51:40", "11:51:45", "11:51:50", "11:51:55"]),
        (3600.0, ["12:00", "12:10", "12:20", "12:30", "12:40", "12:50"]),
        (3 * 86_400.0, ["20 Nov 12:00", "21 Nov 00:00", "21 Nov 12:00", "22 Nov 00:00", "22 Nov 12:00", "23 Nov 00:00"]),
    ],
)  # fmt: skip
def test_times_on_the_axis_are_round_times_of_the_clock(seconds: float, labels: list[str]) -> None:
    """In UTC, as few as fit, with the date where there are several days."""
    assert [tick.label for tick in time_ticks(1_795_175_484.0, seconds)] == labels
