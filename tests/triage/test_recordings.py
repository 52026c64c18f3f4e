"""Every recorded case, judged again: it gets its verdict, loses it without its witnesses, and never breaks triage."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from perfwatch.gauntlet.recorded import Expected, blamed, case_text, cases, expected_of
from perfwatch.gauntlet.score import CONFIDENT
from perfwatch.recording.recording import Recording
from perfwatch.triage.diagnose import diagnose
from perfwatch.triage.history import History
from perfwatch.triage.roles.job import read_job
from perfwatch.verdict import Missing, Verdict
from perfwatch_probes.readings import Thread
from tests.recorded import RECORDINGS, load_case

NAMES = [str(case.relative_to(RECORDINGS)) for case in cases(RECORDINGS)]
# With --dist loadgroup one process judges a case for all tests, and what it cached is used.
CASES = [pytest.param(name, marks=pytest.mark.xdist_group(name), id=name) for name in NAMES]
FIRES = [case for case, name in zip(CASES, NAMES, strict=True) if name.split("/")[1] == "fires"]
PREFIXES = 12


@cache
def recording(case: str) -> Recording:
    """Load a case once."""
    return load_case(RECORDINGS / case)


@cache
def verdict_at(case: str, at: float) -> Verdict:
    """Judge a case at a moment once."""
    return diagnose(recording(case).until(at), at)


def verdict_of(case: str) -> Verdict:
    """The verdict at the moment that was accepted."""
    return verdict_at(case, expected_of(RECORDINGS / case).at)


def failed(verdict: Verdict) -> list[Missing]:
    """Rules that raised."""
    return [missing for missing in verdict.missing if missing.witness.startswith("rule ")]


@pytest.mark.parametrize("case", CASES)
def test_a_case_gets_the_verdict_that_was_accepted(case: str) -> None:
    """A change here is intended or a regression: scripts/accept shows which cases it touches."""
    expected = expected_of(RECORDINGS / case)

    assert Expected.of(verdict_of(case), expected.at) == expected


@pytest.mark.parametrize("case", CASES)
def test_a_case_lies_in_the_folder_of_what_it_shows(case: str) -> None:
    """``fires`` names its cause; ``lookalike`` must not."""
    cause, kind, _ = case.split("/")

    assert (expected_of(RECORDINGS / case).cause == cause) is (kind == "fires")


@pytest.mark.parametrize("case", CASES)
def test_no_rule_fails_on_a_case(case: str) -> None:
    """Triage isolates a rule that raises; here none may."""
    assert failed(verdict_of(case)) == []


@pytest.mark.parametrize("case", FIRES)
def test_whoever_is_told_of_a_fault_is_told_what_to_do_about_it(case: str) -> None:
    """One action, and at most one more; where nothing is wrong, nothing is to be done."""
    verdict = verdict_of(case)

    if verdict.state in ("hung", "slow") or verdict.cause in ("killed", "crashed", "out_of_memory"):
        assert 1 <= len(verdict.next) <= 2
        assert all(verdict.next)
    if verdict.cause in ("cpu_training", "balanced", "finished"):
        assert verdict.next == ()


@pytest.mark.parametrize("case", FIRES)
def test_without_a_witness_it_abstains_and_never_guesses(case: str) -> None:
    """For each kind of reading left out: the same cause, another that made it slow too, or nothing said with confidence; no rule fails.

    Where the ranks that wait cannot be told, the absent one is blamed for what holds it back itself, which is as true.
    """
    whole = recording(case)
    expected = expected_of(RECORDINGS / case)
    beside = {one.cause for one in verdict_of(case).findings if one.state == expected.state == "slow"}
    guesses = {}
    for kind in {type(record.reading) for record in whole.records}:
        records = tuple(record for record in whole.records if type(record.reading) is not kind)
        verdict = diagnose(replace(whole, records=records), expected.at)
        own = (expected.cause, verdict.state) == ("stalled_collective", "hung") and blamed(verdict) == expected.culprit
        if verdict.cause not in {expected.cause, None, *beside} and verdict.confidence >= CONFIDENT and not own:
            guesses[kind.__name__] = f"{verdict.state}/{verdict.cause}: {verdict.summary}"
        if failed(verdict):
            guesses[kind.__name__] = str(failed(verdict))

    assert guesses == {}


@pytest.mark.parametrize("case", FIRES)
def test_no_rule_needs_the_training_thread_in_proc(case: str) -> None:
    """Stacks come from py-spy, which may see a thread before /proc was looked at."""
    whole = recording(case)
    ranks = {rank.pid for rank in read_job(History(whole.records, whole.end)).ranks}
    records = tuple(one for one in whole.records if not isinstance(one.reading, Thread) or one.reading.pid not in ranks)

    assert failed(diagnose(replace(whole, records=records), expected_of(RECORDINGS / case).at)) == []


@pytest.mark.parametrize("case", CASES)
def test_every_prefix_has_a_verdict_and_always_the_same(case: str) -> None:
    """Whenever the watcher dies, what it left can be judged, here and anywhere; each case repeats one moment, all repeat each."""
    whole = recording(case)
    moments = [whole.end * number / PREFIXES for number in range(PREFIXES + 1)]
    verdicts = [verdict_at(case, at) for at in moments]
    repeated = NAMES.index(case) % len(moments)
    at = moments[repeated]

    assert [one for one in verdicts if failed(one)] == []
    assert diagnose(whole.until(at), at) == verdicts[repeated]


@pytest.mark.parametrize("case", CASES)
def test_a_case_holds_no_trace_of_the_machine_that_recorded_it(case: str) -> None:
    """Paths of a checkout and names of hosts do not belong into the tests."""
    text = case_text(RECORDINGS / case).decode()
    here = [str(Path(__file__).parents[2]), "/root/", "site-packages/perfwatch"]

    assert [name for name in here if name in text] == []
