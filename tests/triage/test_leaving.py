"""Ranks that wait for one which has left: soon hung where nothing can come of it, and watched for longer where it may."""

from dataclasses import replace

import pytest

from perfwatch.recording.recording import Record
from perfwatch.triage.diagnose import diagnose
from perfwatch_probes.readings import Traffic
from tests.recorded import RECORDINGS, load_case

CASE = RECORDINGS / "slow_output" / "lookalike" / "nccl-four_prints"
AT = 20.0


@pytest.mark.parametrize(
    ("bytes_per_second", "state"), [(0, "hung"), (40 * 2**20, "inconclusive"), (None, "inconclusive")]
)
def test_three_cards_that_poll_may_talk_to_each_other_unless_nothing_is_sent(
    bytes_per_second: int | None, state: str
) -> None:
    """Of four recorded ranks one destroys its group: the other three may be in a long collective of their own."""
    seen = load_case(CASE).until(AT)
    ranks = {one.pid for one in diagnose(seen, AT).culprits}
    looks = () if bytes_per_second is None else (8.0, 12.0, 16.0, 20.0)
    sums = tuple(
        Record(
            at,
            Traffic(
                pid=pid,
                connections=6,
                received_bytes=int(at * (bytes_per_second or 0)),
                sent_bytes=0,
                queued_bytes=0,
                retransmits=0,
            ),
        )
        for at in looks
        for pid in ranks
    )
    whole = replace(seen, records=tuple(sorted((*seen.records, *sums), key=lambda one: one.at)))

    verdict = diagnose(whole, AT)

    assert verdict.state == state
    assert (verdict.cause or (verdict.suspect and verdict.suspect.cause)) == "mismatched_collective"
