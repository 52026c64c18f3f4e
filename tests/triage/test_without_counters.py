"""Cards older than Hopper have no performance monitoring: every verdict says so, and none is surer for it."""

from dataclasses import replace

import pytest
from msgspec import structs

from perfwatch.gauntlet.recorded import blamed, case_text, cases, expected_of
from perfwatch.gauntlet.score import CONFIDENT
from perfwatch.recording.recording import Recording
from perfwatch.triage.diagnose import diagnose
from perfwatch_probes.readings import Gpu, GpuActivity
from tests.recorded import RECORDINGS, load_case

WITH_A_CARD = [
    str(case.relative_to(RECORDINGS))
    for case in cases(RECORDINGS)
    if case.parent.name == "fires" and b'"type":"Gpu"' in case_text(case)
]


def older(recording: Recording) -> Recording:
    """The same, as a card without performance monitoring would have shown it."""
    kept = []
    for record in recording.records:
        if isinstance(record.reading, Gpu):
            kept.append(structs.replace(record, reading=structs.replace(record.reading, gpm=False)))
        elif not isinstance(record.reading, GpuActivity):
            kept.append(record)
    return replace(recording, records=tuple(kept))


@pytest.mark.parametrize("case", WITH_A_CARD)
def test_a_verdict_about_an_older_card_says_what_is_not_seen(case: str) -> None:
    """The same cause at most as surely; or, of many ranks, the same culprit under its own cause; or nothing with confidence."""
    recording, at = load_case(RECORDINGS / case), expected_of(RECORDINGS / case).at
    seen, unseen = diagnose(recording, at), diagnose(older(recording), at)

    assert unseen.state == "gone" or "gpm" in {
        one.witness for one in unseen.missing
    }  # of an ended job no card is watched
    if unseen.cause == seen.cause:
        assert unseen.confidence <= seen.confidence
    else:
        assert unseen.confidence < CONFIDENT or (unseen.state, blamed(unseen)) == (seen.state, blamed(seen))
