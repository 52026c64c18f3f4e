"""A recorded case judged again, with some of its readings told otherwise."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec

from perfwatch.gauntlet.recorded import expected_of
from perfwatch.triage.diagnose import diagnose
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Reading
from tests.recorded import load_case


def same(reading: Reading) -> Reading:
    """As it was recorded."""
    return reading


def retold(case: Path, changed: Callable[[Reading], Reading] = same, *more: Reading) -> Verdict:
    """The verdict at the moment that the case names; what is more is read at its end."""
    recording, at = load_case(case), expected_of(case).at
    records = tuple(msgspec.structs.replace(one, reading=changed(one.reading)) for one in recording.records)
    records += tuple(msgspec.structs.replace(records[-1], reading=reading) for reading in more)
    return diagnose(replace(recording, records=records).until(at), at)
