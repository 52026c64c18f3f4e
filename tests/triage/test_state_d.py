"""A thread in state D waits for a file only where a file, a call on one or a function of the kernel's for one was seen."""

from dataclasses import replace

import msgspec
import pytest

from perfwatch.gauntlet.recorded import expected_of
from perfwatch.triage.diagnose import diagnose
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Process, Reading, Thread
from tests.recorded import RECORDINGS, load_case

CASE = RECORDINGS / "blocked_storage" / "lookalike" / "child_made_by_vfork"
PARENT = load_case(CASE).session.root_pids[0]


def judged(wchan: str, call: str, kind: str = "other") -> Verdict:
    """The recorded thread in state D, without its child and somewhere else in the kernel."""
    recording, at = load_case(CASE), expected_of(CASE).at
    records = [one for one in recording.records if not _is_child(one.reading)]

    def elsewhere(reading: Reading) -> Reading:
        if not isinstance(reading, Thread) or reading.tid != PARENT or reading.wait is None:
            return reading
        wait = msgspec.structs.replace(reading.wait, call=call, kind=kind)
        return msgspec.structs.replace(reading, wchan=wchan, wait=wait)

    told = tuple(msgspec.structs.replace(one, reading=elsewhere(one.reading)) for one in records)
    return diagnose(replace(recording, records=told), at)


def test_who_made_a_child_waits_for_it_and_for_no_file() -> None:
    """Until the child has become a program of its own its parent is in state D."""
    recording = load_case(CASE)
    child = next(r.pid for one in recording.records if isinstance(r := one.reading, Process) and _is_child(r))
    verdict = diagnose(recording, expected_of(CASE).at)

    assert verdict.cause == "blocked_child"
    assert f"waits for child {child} " in verdict.summary


@pytest.mark.parametrize(("wchan", "call"), [("kernel_clone", "vfork"), ("rwsem_down_write_slowpath", "mmap")])
def test_what_was_not_seen_to_be_storage_is_suspected_at_most(wchan: str, call: str) -> None:
    """No child to follow, no file."""
    verdict = judged(wchan, call)

    assert (verdict.state, verdict.cause) == ("inconclusive", None)
    assert verdict.suspect is not None
    assert f"blocked in {call}, for the kernel ({wchan})" in verdict.summary


@pytest.mark.parametrize(
    ("wchan", "call", "kind"),
    [
        ("request_wait_answer", "page_fault", "page_fault"),
        ("nfs_wait_bit_killable", "mmap", "other"),
        ("rpc_wait_bit_killable", "mmap", "other"),
        ("nvme_submit_sync_cmd", "other", "other"),
        ("0", "execve", "other"),
    ],
)
def test_a_call_or_a_function_for_files_tells_storage(wchan: str, call: str, kind: str) -> None:
    """A mapped file, functions of NFS and of a disk that begin like the GPU driver's, a program that is read."""
    assert judged(wchan, call, kind).cause == "blocked_storage"


def _is_child(reading: Reading) -> bool:
    return isinstance(reading, Process) and reading.parent_pid == PARENT
