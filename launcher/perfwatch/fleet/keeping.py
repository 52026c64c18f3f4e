"""Keep what was gathered of a job as a session of this machine: ``perfwatch replay`` judges it again."""

from itertools import groupby
from pathlib import Path

from perfwatch.fleet.merge.fleet_recording import Said
from perfwatch.fleet.merge.merging import Merged
from perfwatch.verdict import Verdict
from perfwatch.watching.opening import open_recorder
from perfwatch_probes.deadline import KillableChild


def keep(explicit: str | None, merged: Merged, said: list[Said], verdict: Verdict) -> tuple[Path | None, str]:
    """Write the session; returns where it lies and what was not recorded and why, empty when all was.

    Args:
        explicit: where the user wants it; the first local disk by default.
        merged: all hosts' readings.
        said: what has to be recorded beside them.
        verdict: as it was given.
    """
    child = KillableChild()
    try:
        recorder, folder, why = open_recorder(Path(explicit) if explicit else None, merged.session, child)
    finally:
        child.close()
    if recorder is None:
        return None, f"nothing was recorded: {why}"
    for one in said:
        recorder.event(0.0, one.kind, one.text, one.verdict, one.facts)
    for at, records in groupby(merged.records, key=lambda record: record.at):
        recorder.append(at, [record.reading for record in records])
    recorder.event(merged.end, "verdict", verdict.summary, verdict)
    return folder, recorder.close()
