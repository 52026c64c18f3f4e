"""A worker that goes through an endless generator is known as such, wherever the samples happen to fall."""

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from perfwatch.gauntlet.recorded import expected_of
from perfwatch.recording.recording import Record
from perfwatch.triage.diagnose import diagnose
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Reading, SourceLine, Stack, Thread
from tests.recorded import RECORDINGS, load_case
from tests.triage.retold import retold

FILTERS = RECORDINGS / "stuck_worker" / "fires" / "stuck_worker-filter"
GENERATOR = "Reviews.stream"


def judged_with(outside: int) -> Verdict:
    """The recorded filter, every ``outside``-th stack of whose generator is taken in the loop that goes through it."""
    recording, at = load_case(FILTERS), expected_of(FILTERS).at
    file = next(r.reading.file for r in recording.records if isinstance(r.reading, SourceLine))
    header = SourceLine(file=file, line=24, text="for review in self.stream():", calls=("self.stream",), loops=("for",))
    changed, seen = [Record(at=0.2, reading=header)], 0
    for record in recording.records:
        names = [frame.function for frame in record.reading.frames] if isinstance(record.reading, Stack) else []
        if GENERATOR in names:
            seen += 1
            record = _outside(record, names.index(GENERATOR)) if seen % outside == 0 else record
        changed.append(record)
    return diagnose(replace(recording, records=tuple(changed)), at)


def _outside(record: Record, depth: int) -> Record:
    assert isinstance(record.reading, Stack)
    return structs.replace(record, reading=structs.replace(record.reading, frames=record.reading.frames[depth + 1 :]))


def test_a_generator_that_comes_and_goes_is_still_what_turns() -> None:
    """A quarter of the samples are in the ``for`` loop that asks it for the next item."""
    verdict = judged_with(4)

    assert (verdict.state, verdict.cause) == ("hung", "stuck_worker")
    assert (verdict.culprits[0].frame or "").startswith("stream")


def test_a_loop_that_is_mostly_in_its_own_body_is_not_its_generator() -> None:
    """What the worker does with each item takes the time: that is long work, until proved otherwise."""
    assert judged_with(1).state != "hung"


def test_a_worker_that_stays_in_one_call_is_not_what_the_loop_around_it_says() -> None:
    """A regular expression gone wild below a ``for`` loop; a call that lets the GIL go is long work, until proved otherwise."""
    case = FILTERS.parent / "expression_gone_wild"
    recording, at = load_case(case), expected_of(case).at

    let_go = tuple(
        structs.replace(one, reading=structs.replace(one.reading, owns_gil=False))
        if isinstance(one.reading, Stack) and one.reading.owns_gil
        else one
        for one in recording.records
    )

    assert diagnose(recording, at).state == "hung"
    assert diagnose(replace(recording, records=let_go), at).state != "hung"


def test_one_call_that_costs_more_than_all_that_the_others_did_is_given_half_the_hang_timeout() -> None:
    """Where the other workers have computed as long on theirs, it may be a heavy batch: half a minute is not enough."""
    case = FILTERS.parent / "expression_costs_more_than_all_else"
    recording, at = load_case(case), expected_of(case).at
    worker = next(one for one in diagnose(recording, at).culprits).pid

    heavy = tuple(
        structs.replace(one, reading=structs.replace(one.reading, run_seconds=30.0))
        if isinstance(one.reading, Thread) and one.reading.name == "pt_data_worker" and one.reading.pid != worker
        else one
        for one in recording.records
    )

    assert diagnose(recording, at).state == "hung"
    assert diagnose(replace(recording, records=heavy), at).state == "inconclusive"


def with_calls(case: Path, *calls: str) -> Verdict:
    """The recorded case, had each of its lines made these calls."""

    def changed(reading: Reading) -> Reading:
        return structs.replace(reading, calls=calls) if isinstance(reading, SourceLine) else reading

    return retold(case, changed)


@pytest.mark.parametrize(
    ("call", "matches"),
    [
        ("re.search", True),
        ("FIELD.match", True),
        ("self._word_pattern.sub", True),
        ("fullmatch", True),
        ("index.search", False),
        ("torch.split", False),
        ("text.split", False),
        ("tree.findall", False),
        ("FIELD.parse", False),
    ],
)
def test_only_what_a_pattern_is_asked_for_is_given_up_after_half_the_hang_timeout(call: str, matches: bool) -> None:
    """The recorded call, had it been another: indices are searched and tensors split as well, and both may take their time."""
    case = FILTERS.parent / "expression_costs_more_than_all_else"

    assert (with_calls(case, "len", call).state == "hung") is matches


@pytest.mark.parametrize("case", ["stuck_worker/fires/stuck_worker-filter", "endless_python/fires/endless_python"])
def test_a_loop_that_reads_data_itself_comes_to_its_end(case: str) -> None:
    """Recorded loops without an end, had they read two megabytes a second meanwhile: a buffer fills, or a file is counted."""
    folder = FILTERS.parents[2] / case
    recording, at = load_case(folder), expected_of(folder).at
    reads = tuple(
        structs.replace(one, reading=structs.replace(one.reading, read_chars=int(2e6 * one.at)))
        if isinstance(one.reading, Thread)
        else one
        for one in recording.records
    )

    assert diagnose(recording, at).state == "hung"
    assert diagnose(replace(recording, records=reads), at).state != "hung"
