"""A full /dev/shm beside workers that end in order: they may fail for want of room, or be started anew for each epoch."""

from dataclasses import replace

import msgspec

from perfwatch.gauntlet.recorded import expected_of
from perfwatch.recording.recording import Record
from perfwatch.triage.diagnose import diagnose
from perfwatch_probes.readings import Host
from tests.recorded import RECORDINGS, load_case

RESPAWNS = RECORDINGS / "worker_respawn" / "fires" / "worker_respawn"


def test_workers_of_each_epoch_beside_a_data_set_in_shared_memory_leave_it_unsure() -> None:
    """No worker died, and no file found no room."""
    whole = load_case(RESPAWNS)
    full = tuple(_filled(one) for one in whole.records)
    verdict = diagnose(replace(whole, records=full), expected_of(RESPAWNS).at)

    assert verdict.state == "slow"
    assert verdict.confidence < 0.8


def _filled(record: Record) -> Record:
    """What it says of the machine, with 930 of 1,000 MiB of shared memory in use."""
    if not isinstance(record.reading, Host):
        return record
    host = msgspec.structs.replace(record.reading, shm_total_bytes=1000 << 20, shm_used_bytes=930 << 20)
    return msgspec.structs.replace(record, reading=host)
