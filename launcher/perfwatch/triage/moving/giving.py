"""Who of the job's own processes goes on giving what somebody on the way of a chain waits for, whatever its main thread does.

A server in threads sends in one of them while its main thread sleeps, and each of its sends is followed by a rest.
"""

from perfwatch.triage.case import Case
from perfwatch.triage.moving.arriving import received, waited_on
from perfwatch.triage.waits.chain import Chain
from perfwatch_probes.readings import Descriptor

WINDOW_SECONDS = 10.0
GIVES_BYTES = 16 * 1024  # per second: questions and answers of a thing that is asked again and again are fewer


def giving(case: Case, chain: Chain) -> dict[int, float]:
    """Bytes per second that arrive on connections which threads of the chain wait on, by the member of the job at the other end."""
    waiting = tuple(dict.fromkeys((link.pid, link.tid or link.pid) for link in chain.links))
    return case.history.once(("giving", waiting), lambda: _giving(case, waiting))  # half a dozen rules ask


def _giving(case: Case, waiting: tuple[tuple[int, int], ...]) -> dict[int, float]:
    found: dict[int, float] = {}
    for pid, tid in waiting:
        for fd in waited_on(case.history, pid, tid, WINDOW_SECONDS):
            rate = case.history.rate(Descriptor, pid, fd, of=received, seconds=WINDOW_SECONDS) or 0.0
            seen = case.history.latest(Descriptor, pid, fd)
            socket = seen.reading.socket if seen is not None else None
            for giver in socket.peer_pids if socket is not None and rate >= GIVES_BYTES else ():
                if giver in case.job.members and giver != pid:
                    found[giver] = max(found.get(giver, 0.0), rate)
    return found
