"""How the job ended, if it did: shared by the rules about jobs that are gone."""

import re
import signal

from perfwatch.probes import readings as r
from perfwatch.triage.case import Case
from perfwatch.triage.gpu import cards_of
from perfwatch.triage.history import History
from perfwatch.triage.job import Member

_SIGNALLED = re.compile(r"got signal: (\d+)")  # torch/distributed/elastic/multiprocessing/api.py
ASKED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
LOOKS_APART_SECONDS = 2.0  # an end is noticed so much later than an error at most


def ending(case: Case) -> r.ProcessEnded | None:
    """The end that matters: of the job's top process if it is gone, else of the ranks if none is left; None while it lives.

    The launcher of ``run`` knows its child's exit code; a rank that was killed first says more than the launcher's own code.
    """
    members = case.job.members
    ranks = case.job.ranks
    if not members or any(rank.alive for rank in ranks) or not ranks:
        return None
    if any(_returns(case, rank) for rank in ranks):
        return None
    ends = [
        seen.reading
        for key in case.history.entities(r.ProcessEnded)
        if (seen := case.history.latest(r.ProcessEnded, *key))
    ]
    tops = [e for e in ends if e.pid in case.session.root_pids and (e.exit_code is not None or e.signal)]
    of_ranks = [rank.ended for rank in ranks if rank.ended is not None]
    signalled = [e for e in of_ranks if e.signal]
    if len(ranks) > 1 and signalled:
        return signalled[0]
    known = tops or [e for e in of_ranks if e.exit_code is not None or e.signal] or of_ranks
    return known[0] if known else None


def _returns(case: Case, rank: Member) -> bool:
    """Whether torchrun lives and has restarts left for this rank."""
    launcher = case.job.members.get(rank.process.parent_pid)
    names = rank.process.environment
    made, most = names.get("TORCHELASTIC_RESTART_COUNT", ""), names.get("TORCHELASTIC_MAX_RESTARTS", "")
    return (
        launcher is not None
        and launcher.alive
        and made.isdecimal()
        and most.isdecimal()
        and int(made) < int(most)
        and rank.ended is not None
        and rank.ended.exit_code != 0
    )


def how_it_ended(history: History, pid: int) -> str:
    """In words: ``killed by SIGKILL``, ``exited with code 3``; empty where nobody could tell."""
    seen = history.latest(r.ProcessEnded, pid)
    if seen is None:
        return ""
    number, code = seen.reading.signal, seen.reading.exit_code
    if number:
        return f"killed by {signal.Signals(number).name if number in set(signal.Signals) else f'signal {number}'}"
    return "" if code is None else f"exited with code {code}"


def killed_first(case: Case, end: r.ProcessEnded, words: r.Traceback) -> bool:
    """Whether an error only followed: another rank had been killed outright by then, and raised nothing itself.

    A launcher that ends the others after an error asks them first (SIGTERM).
    """
    if end.signal in (None, *ASKED) or end.pid not in {rank.pid for rank in case.job.ranks} or words.pid == end.pid:
        return False
    seen = case.history.latest(r.ProcessEnded, end.pid)
    raised = [one.at for one in case.history.every(r.Traceback)]
    silent = end.pid not in {one.reading.pid for one in case.history.every(r.Traceback)}
    return silent and seen is not None and bool(raised) and seen.at <= min(raised) + LOOKS_APART_SECONDS


def passed_on(case: Case) -> int | None:
    """The signal that torchrun was ended by: it raises then, so as to end its ranks first."""
    words = traceback_of(case)
    found = _SIGNALLED.search(words.text) if words is not None and words.exception.endswith("SignalException") else None
    return int(found[1]) if found else None


def traceback_of(case: Case) -> r.Traceback | None:
    """The first traceback that the agent kept of a process that is gone: the others followed from it.

    Of ranks that were restarted, of the newest generation: the launcher got over the errors before.
    """
    kept = []
    for seen in case.history.every(r.Traceback):
        member = case.job.members.get(seen.reading.pid)
        if member is None or not member.alive or member.role != "worker":
            kept.append(seen.reading)
    newest = {rank.pid for rank in case.job.ranks}
    of_newest = [one for one in kept if (m := case.job.members.get(one.pid)) is not None and m.rank_pid in newest]
    return next(iter(of_newest or kept), None)


def used_a_gpu(case: Case) -> bool:
    """Whether a rank of the job had a card: there many a failure leaves the same exit code or signal."""
    return any(cards_of(case.history, rank.pid).uuids for rank in case.job.ranks)
