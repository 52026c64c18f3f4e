"""A snapshot survives its way through noise, and whatever is not one is refused before it costs anything."""

import base64
import random
import zlib

import msgspec
import pytest

from perfwatch.fleet import wire
from perfwatch.fleet.merge.snapshot import Snapshot
from perfwatch.recording.recording import Record
from perfwatch_probes.readings import Process
from tests.fleet.parts import simulated

NONCE = "00112233445566ff"
LONGEST_LINE_OF_SRUN = 1024


def snapshot(**changes: object) -> Snapshot:
    """Of one host with eight ranks."""
    (part,) = simulated(1, stuck_rank=3)
    facts: dict[str, object] = {
        "version": "1",
        "host": "node-0",
        "place": "boot pid:[1]",
        "made": 1.0,
        "jobs": (part.view,),
    }
    return Snapshot(**{**facts, **changes})  # type: ignore[arg-type]


def packed(data: bytes) -> list[str]:
    """Any bytes as the lines in which a snapshot travels."""
    compressed = zlib.compress(data)
    text, check = base64.b64encode(compressed).decode(), f"{zlib.crc32(compressed):08x}"
    size = wire.DATA_CHARACTERS
    parts = [text[first : first + size] for first in range(0, len(text), size)]
    return [f"{wire.MARK} {NONCE} {index} {len(parts)} {check} {part}" for index, part in enumerate(parts)]


def test_a_snapshot_comes_back_as_it_was() -> None:
    """Out of order, labelled by srun, between a banner and warnings."""
    sent = snapshot()
    lines = wire.lines(sent, NONCE)
    noisy = ["Welcome to node-0", *(f"12: {line}" for line in lines), "\x1b[0mbye"]
    random.Random(1).shuffle(noisy)

    assert len(lines) > 1
    assert max(map(len, noisy)) < LONGEST_LINE_OF_SRUN
    assert wire.read(noisy, NONCE) == sent


def test_an_answer_to_another_question_is_none() -> None:
    """What an earlier look left in a buffer is not taken for this one."""
    with pytest.raises(wire.Garbled, match="no snapshot"):
        wire.read(wire.lines(snapshot(), "ffffffffffffffff"), NONCE)


def test_a_torn_answer_is_refused() -> None:
    """A host that was cut off says how much of it arrived."""
    lines = wire.lines(snapshot(), NONCE)

    with pytest.raises(wire.Garbled, match=rf"{len(lines) - 1} of {len(lines)} parts"):
        wire.read(lines[:-1], NONCE)


def test_a_damaged_answer_is_refused() -> None:
    """One letter is enough."""
    lines = wire.lines(snapshot(), NONCE)
    lines[0] = lines[0][:-1] + ("A" if lines[0][-1] != "A" else "B")

    with pytest.raises(wire.Garbled, match="damaged"):
        wire.read(lines, NONCE)


def test_a_small_answer_that_unpacks_to_much_is_refused() -> None:
    """100 MB of one letter fit into a few lines."""
    with pytest.raises(wire.Garbled, match="unpacks to more than"):
        wire.read(packed(b" " * (100 * 2**20)), NONCE)


@pytest.mark.parametrize(
    "document",
    [
        b"[]",
        b"{" * 100_000,
        b'{"schema": "perfwatch.snapshot/1"}',
        msgspec.json.encode({**msgspec.to_builtins(snapshot()), "made": "yesterday"}),
    ],
)
def test_what_is_no_snapshot_is_refused(document: bytes) -> None:
    """Other JSON, and JSON that is deeper than anybody can follow."""
    with pytest.raises(wire.Garbled):
        wire.read(packed(document), NONCE)


def test_another_version_says_so() -> None:
    """With what to do about it."""
    with pytest.raises(wire.Garbled, match="use one version on all hosts"):
        wire.read(wire.lines(snapshot(schema="perfwatch.snapshot/2"), NONCE), NONCE)


def test_ranks_and_times_that_cannot_be_are_refused() -> None:
    """A rank of two billion would make a list of as many absent ones."""
    (view,) = snapshot().jobs
    huge = Process(pid=1, start_ticks=1, parent_pid=0, name="python", command=(), world_size=10**9)
    for wrong in (
        msgspec.structs.replace(view, ranks=(2**31,)),
        msgspec.structs.replace(view, identity=msgspec.structs.replace(view.identity, world_size=2**40)),
        msgspec.structs.replace(view, end=-5.0),
        msgspec.structs.replace(view, session=msgspec.structs.replace(view.session, created=-1e18)),
        msgspec.structs.replace(view, records=(Record(0.0, huge),)),
    ):
        with pytest.raises(wire.Garbled):
            wire.read(wire.lines(snapshot(jobs=(wrong,)), NONCE), NONCE)
