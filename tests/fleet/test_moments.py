"""Hosts are not looked at in one moment: what was seen at different ones is no hang unless it lasted from one to the other."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import pytest

from perfwatch.fleet import wire
from perfwatch.fleet.asking import Outcome, Question, ask, looked_at
from perfwatch.fleet.engine import Answer, Heard
from perfwatch.fleet.merge.merging import Part
from perfwatch.fleet.merge.snapshot import JobView, Snapshot
from tests.fleet.parts import simulated

NOW = 1_800_000_000.0
STUCK = 9
SHORT_SECONDS = 0.5  # that everybody had waited when the look began, which takes 8 s


@dataclass
class Late:
    """An engine whose second host is asked later than the first."""

    snapshots: dict[str, Snapshot]
    late_seconds: float
    complete: bool = False
    job: str = ""

    @property
    def hosts(self) -> tuple[str, ...]:
        """Both."""
        return tuple(self.snapshots)

    def by_hand(self, host: str) -> str:
        """As ssh has it."""
        return f"ssh {host}"

    def ask(self, arguments: Sequence[str], deadline_seconds: float, heard: Heard) -> None:
        """Answer at once."""
        nonce = next(word.partition("=")[2] for word in arguments if word.startswith("--nonce="))
        for number, (host, snapshot) in enumerate(self.snapshots.items()):
            lines = tuple(wire.lines(snapshot, nonce))
            heard(Answer(host, lines, received=NOW + number * self.late_seconds))


def waiting(view: JobView, seconds: float) -> JobView:
    """The same host, where all that stands began to stand so long before the look."""
    kept = tuple(
        msgspec.structs.replace(one, reading=msgspec.structs.replace(one.reading, ran_ago_seconds=one.at + seconds))
        if hasattr(one.reading, "ran_ago_seconds")
        else one
        for one in view.records
    )
    return msgspec.structs.replace(view, records=kept)


def answer(part: Part, seconds: float) -> Snapshot:
    """What a host says as soon as its look has ended; its clock is its own."""
    view = waiting(part.view, seconds)
    return Snapshot(version="1", host=part.host, place=part.host, made=view.session.created + view.end, jobs=(view,))


def judged(seconds: float, late_seconds: float) -> Outcome:
    """Two hosts of eight ranks, the worker of one of them asleep."""
    parts = simulated(2, STUCK)
    return ask(Late({part.host: answer(part, seconds) for part in parts}, late_seconds), Question())


@pytest.mark.parametrize(("seconds", "late"), [(SHORT_SECONDS, 0.0), (300.0, 12.0)])
def test_what_lasted_from_one_look_to_the_other_is_a_hang(seconds: float, late: float) -> None:
    """At one moment all were in it, whichever that was."""
    verdict = judged(seconds, late).verdict

    assert (verdict.state, verdict.cause) == ("hung", "stalled_collective")


def test_what_was_shorter_waits_for_another_look() -> None:
    """The first host's ranks may have gone on before the second was asked: all are asked again, once the time has gone by."""
    outcome = judged(SHORT_SECONDS, 12.0)
    suspect = outcome.verdict.suspect

    assert outcome.verdict.state == "inconclusive"
    assert suspect is not None
    assert 2.0 < suspect.decides_in_seconds < 6.0
    assert "the hosts looked 12 s apart" in " ".join(one.reason for one in outcome.verdict.missing)


def test_how_long_a_host_took_to_say_what_it_saw_counts_by_its_own_clock() -> None:
    """The answer is made 3 s after the look, and by a clock that is an hour behind."""
    part = simulated(1)[0]
    snapshot = answer(part, 0.0)
    snapshot = msgspec.structs.replace(snapshot, made=snapshot.made + 3.0)

    assert looked_at(snapshot, part.view, NOW) == NOW - 3.0
