"""A read, write or look-up on a mount does not come back."""

import re

from perfwatch.triage.case import Case
from perfwatch.triage.hang import hung, who
from perfwatch.triage.independence import ONE_SOURCE
from perfwatch.triage.patience import temporal
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.node import End
from perfwatch.verdict import Alternative, Outcome
from perfwatch_probes.readings import Host, Thread

CAUSE = Cause("blocked_storage", "hung", "storage", (Thread,))

FLUSHING_BYTES_PER_SECOND = 1 << 20  # a page cache that shrinks faster than this is being written
CALLS = frozenset(
    "read write open stat sync lock page_fault execve".split()
)  # kinds of calls on files, and one by its name
# Functions of Linux' page cache, block layer and file systems in which a thread waits; there are others.
WAITS = re.compile(
    r"_*(folio|wait_on_page|io_schedule|blk|bio_|rq_qos|balance_dirty|wait_on_buffer|jbd2|ext4|xfs|xlog|btrfs|zfs|zio|nfs|rpc_wait"
    r"|fuse|request_wait_answer|ceph|cifs|smb|wait_for_response|lustre|ll_|cl_|ptlrpc|gpfs|beegfs|p9_|v9fs|nvme|scsi|wb_|writeback)"
)


def judge(case: Case) -> Outcome:
    """Fires on a chain that ends in a file system call that does not return."""
    for chain in case.still_chains:
        end = chain.end
        if end.kind not in ("storage", "uninterruptible") or not end.still or _flushing(case, chain):
            continue
        file = end.descriptor
        where = f" on {file.mount} ({file.filesystem}, {file.device})" if file is not None and file.mount else ""
        seen = end.kind == "storage" or bool(end.detail) or _of_files(end)
        call = end.node.wait.call if end.node.wait else "a kernel wait"
        what = f"{call} of {end.detail or 'a file'}{where}" if seen else f"{call}, for {chain.awaited}"
        return hung(
            case,
            CAUSE.name,
            chain,
            owner=CAUSE.owner,
            summary=f"{who(chain)} is blocked in {what}",
            patience=temporal(case),
            ceiling=1.0 if seen else ONE_SOURCE,
            alternatives=(
                Alternative(cause="starved_by_storage", refuted_by="the call has not returned once"),
                Alternative(cause="slow_checkpoint", refuted_by="no page is being written back"),
            ),
            next=(
                f"grep {file.mount} /proc/mounts"
                if file is not None and file.mount
                else f"cat /proc/{end.node.pid}/task/{end.node.tid}/stack",
                "dmesg | tail",
            ),
        )
    return None


def _of_files(end: End) -> bool:
    """Whether a thread in state D stands in a call on files, or in a function of the kernel's for them."""
    wait, thread = end.node.wait, end.node.thread
    called = wait is not None and (wait.kind in CALLS or wait.call in CALLS)
    return called or (thread is not None and WAITS.match(thread.wchan or "") is not None)


def _flushing(case: Case, chain: Chain) -> bool:
    """An fsync that waits for the page cache to be written, and the page cache shrinks."""
    wait = chain.end.node.wait
    if wait is None or wait.kind != "sync":
        return False
    host = [
        (one.at, (one.reading.dirty_bytes or 0) + (one.reading.writeback_bytes or 0))
        for one in case.history.series(Host, seconds=10.0)
    ]
    if len(host) < 2 or host[-1][0] <= host[0][0]:
        return False
    return (host[0][1] - host[-1][1]) / (host[-1][0] - host[0][0]) > FLUSHING_BYTES_PER_SECOND


RULES = (Rule(CAUSE, judge),)
