"""The Perfetto trace, read back with Perfetto's own messages; its viewer opens it in ``test_perfetto_viewer``."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as trace

from perfwatch.recording.recording import load
from perfwatch.report.perfetto import as_trace
from perfwatch.report.story import tell
from tests import simulated_hour

SECONDS = 90.0


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The trace of a simulated job: 8 cards, 64 processes, stuck for the last minute of one and a half."""
    folder = simulated_hour.write(tmp_path_factory.mktemp("hour") / "session", SECONDS)
    recording = load(folder)
    return as_trace(tell(folder, recording, recording.end))


@pytest.fixture(scope="module")
def packets(written: bytes) -> list[Any]:
    """Its packets."""
    whole = trace.Trace()
    whole.ParseFromString(written)
    return list(whole.packet)


def names_of(packets: list[Any]) -> dict[int, str]:
    """Track descriptions: number to name."""
    found = {}
    for packet in packets:
        if packet.HasField("track_descriptor"):
            described = packet.track_descriptor
            found[described.uuid] = described.name or described.thread.thread_name or described.process.process_name
    return found


def events(packets: list[Any]) -> Iterator[tuple[int, Any, str]]:
    """(nanoseconds, event, name) with names looked up."""
    interned: dict[int, str] = {}
    for packet in packets:
        interned |= {one.iid: one.name for one in packet.interned_data.event_names}
        if packet.HasField("track_event"):
            yield packet.timestamp, packet.track_event, interned.get(packet.track_event.name_iid, "")


def test_counters_states_stacks_events_and_verdicts_are_there(packets: list[Any]) -> None:
    """Each as a track of its own, with its unit where it has one."""
    names = set(names_of(packets).values())
    units = {
        p.track_descriptor.name: p.track_descriptor.counter.unit_name for p in packets if p.HasField("track_descriptor")
    }

    assert {"verdicts", "events", "state", "stack", "step time"} <= names
    assert {f"gpu {card}: works" for card in range(8)} <= names
    assert units["gpu 3: works"] == "%"
    assert len([p for p in packets if p.HasField("track_descriptor") and p.track_descriptor.HasField("process")]) == 64


def test_slices_nest_and_end_on_every_track(packets: list[Any]) -> None:
    """What a viewer needs: as many ends as beginnings, never an end before its beginning, times in order."""
    open_slices: Counter[int] = Counter()
    last: dict[int, int] = defaultdict(int)
    for at, event, _ in events(packets):
        if event.type == trace.TrackEvent.TYPE_SLICE_BEGIN:
            open_slices[event.track_uuid] += 1
        elif event.type == trace.TrackEvent.TYPE_SLICE_END:
            open_slices[event.track_uuid] -= 1
        assert open_slices[event.track_uuid] >= 0
        assert at >= last[event.track_uuid], (names_of(packets)[event.track_uuid], at)
        last[event.track_uuid] = at

    assert set(open_slices.values()) == {0}


def test_a_stack_is_nested_with_the_outermost_frame_first(packets: list[Any]) -> None:
    """As a flame chart has it."""
    stacks = {track for track, name in names_of(packets).items() if name == "stack"}
    first = [name for _, event, name in events(packets) if event.track_uuid == min(stacks) and name][:3]

    assert any("train.py" in name for name in first[:1])


def test_times_are_unix_time(packets: list[Any]) -> None:
    """So that two traces of one incident lie side by side."""
    times = [at for at, _, _ in events(packets)]

    assert min(times) >= simulated_hour.CREATED * 1e9
    assert max(times) <= (simulated_hour.CREATED + SECONDS + 10) * 1e9


def test_the_card_that_spins_can_be_queried(packets: list[Any]) -> None:
    """The last minute: every card but that of rank 5 spins."""
    names = names_of(packets)
    spins = defaultdict(list)
    for at, event, _ in events(packets):
        if event.type == trace.TrackEvent.TYPE_COUNTER and at > (simulated_hour.CREATED + SECONDS - 20) * 1e9:
            spins[names[event.track_uuid]].append(event.double_counter_value)

    assert {card for card in range(8) if min(spins[f"gpu {card}: spins"]) == 100.0} == set(range(8)) - {5}
