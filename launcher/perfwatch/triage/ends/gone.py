"""How the job ended, if it did, and what its processes said last."""

import re
import signal

from perfwatch.recording.recording import TERMINATES
from perfwatch.triage.cards.whose import cards_of
from perfwatch.triage.case import Case
from perfwatch.triage.history import History, Seen
from perfwatch.triage.roles.job import Member
from perfwatch.triage.words.frames import is_user, show
from perfwatch_probes import readings as r
from perfwatch_probes.bounds import count

_FRAME = re.compile(r'^ +File "(?P<file>[^"]+)", line (?P<line>\d{1,9}), in (?P<function>.+)$', re.MULTILINE)
LONGEST_WORDS = 200
_SIGNALLED = re.compile(r"got signal: (\d{1,9})")  # torch/distributed/elastic/multiprocessing/api.py
# What gloo, NCCL and a store raise in a rank whose peer has gone; Python's own ConnectionResetError is of any server.
_PEER_IS_GONE = re.compile(
    r"^(?:\w+\.)*(?:RuntimeError|Dist\w+Error): .*"
    r"(?:Connection (?:closed|reset) by peer|Broken pipe|remote process exited|remote server shutdown)",
    re.MULTILINE,
)
ASKED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
FOLLOWING = (*ASKED, signal.SIGABRT)  # what a rank ends by for another's failure: NCCL's watchdog and C++ abort
BETWEEN_SECONDS = 30.0  # until a script that lives on is thought to start nothing more
LOOKS_APART_SECONDS = 2.0  # an end is noticed so much later than an error at most
NOTICED_SECONDS = 0.5  # and mostly at once: its handle wakes us
FOLLOWS_SECONDS = 10.0  # until a process that waits for a failed one fails too: with a GPU it takes seconds to end
HEARS_SECONDS = 60.0  # in which a program that was asked to end has saved what it wants, and leaves
SHELL_ADDS = 128  # to the number of the signal that ended its child: the exit code of a shell


def ending(case: Case) -> r.ProcessEnded | None:
    """The end that matters: of the job's top process if it is gone, else of the ranks if none is left; None while it lives.

    The launcher of ``run`` knows its child's exit code; a rank that was killed first says more than the launcher's own code.
    """
    members = case.job.members
    ranks = case.job.ranks
    if not ranks and not any(member.alive for member in members.values()):
        return next((members[pid].ended for pid in case.session.root_pids if pid in members), None)
    if not members or any(rank.alive for rank in ranks) or not ranks:
        return None
    if any(_returns(case, rank) for rank in ranks) or _may_start_another(case):
        return None
    ends = [
        seen.reading
        for key in case.history.entities(r.ProcessEnded)
        if (seen := case.history.latest(r.ProcessEnded, *key))
    ]
    tops = [e for e in ends if e.pid in case.session.root_pids and (e.exit_code is not None or e.signal)]
    before = _got_over(case)
    of_ranks = [rank.ended for rank in ranks if rank.ended is not None and rank.pid not in before]
    first, well = _first_failure(case, of_ranks), any(e.exit_code == 0 for e in tops)
    if first is not None and (not well or (first.signal and len(ranks) > 1)):
        return first
    known = tops or [e for e in of_ranks if e.exit_code is not None or e.signal] or of_ranks
    return known[0] if known else None


def _got_over(case: Case) -> set[int]:
    """Ranks that had ended before the youngest was seen: an earlier program of a script, or an earlier generation."""
    ranks = case.job.ranks
    youngest = max((case.history.series(r.Process, rank.pid)[0].at for rank in ranks), default=0.0)
    return {rank.pid for rank in ranks if rank.ended is not None and ended_at(case, rank.ended) < youngest}


def _may_start_another(case: Case) -> bool:
    """True if a script lives on whose program ended a moment ago."""
    tops = [case.job.members.get(pid) for pid in case.session.root_pids]
    if not any(top is not None and top.alive and not top.process.python and top.role == "launcher" for top in tops):
        return False
    last = max((ended_at(case, rank.ended) for rank in case.job.ranks if rank.ended is not None), default=0.0)
    return case.history.at - last < BETWEEN_SECONDS


def _first_failure(case: Case, ends: list[r.ProcessEnded]) -> r.ProcessEnded | None:
    """The end of that rank which failed first, by a code or a signal; a launcher then asks the others to end (SIGTERM).

    Who loses its peer to a signal may be seen to fail before that one is.
    """
    failed = sorted(
        (one for one in ends if one.exit_code or one.signal), key=lambda one: (ended_at(case, one), one.signal in ASKED)
    )
    if not failed or failed[0].signal:
        return failed[0] if failed else None
    latest = ended_at(case, failed[0]) + LOOKS_APART_SECONDS
    outright = (e for e in failed if e.signal and e.signal not in FOLLOWING and ended_at(case, e) <= latest)
    return next(outright, failed[0])


def _returns(case: Case, rank: Member) -> bool:
    """True if torchrun lives and has restarts left for this rank."""
    launcher = case.job.members.get(rank.process.parent_pid)
    names = rank.process.environment
    made, most = (count(names.get(f"TORCHELASTIC_{word}")) for word in ("RESTART_COUNT", "MAX_RESTARTS"))
    return (
        launcher is not None
        and launcher.alive
        and made is not None
        and most is not None
        and made < most
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


def failed_first(case: Case, end: r.ProcessEnded, words: r.Traceback) -> bool:
    """True if an error only followed: another rank was gone by then, killed outright or with a bad code, and raised nothing.

    A launcher that ends the others after an error asks them first (SIGTERM).
    """
    if end.signal in ASKED or not (end.signal or end.exit_code) or words.pid == end.pid:
        return False
    kept = case.history.every(r.Traceback)
    if end.pid not in {rank.pid for rank in case.job.ranks} or end.pid in {one.reading.pid for one in kept}:
        return False
    raiser = case.job.members.get(words.pid)
    if not end.signal and (raiser is None or raiser.rank_pid == end.pid):
        return False  # it may have ended for the error of what it had started
    apart = LOOKS_APART_SECONDS if end.signal else NOTICED_SECONDS
    if kept and ended_at(case, end) <= min(map(raised_when, kept)) + apart:
        return True
    # Where nobody looked for longer (a host that is busy), an error and an end that one look found tell their order by the words.
    found = next((one.at for one in kept if one.reading == words), 0.0)
    return bool(end.signal) and lost_a_peer(words) and ended_at(case, end) <= found


def lost_a_peer(words: r.Traceback) -> bool:
    """True if an error only says that another rank has gone, which came first and has a cause of its own."""
    return _PEER_IS_GONE.search(words.text) is not None


def raised_when(seen: Seen[r.Traceback]) -> float:
    """When an error was raised, or in older recordings found."""
    return seen.at - (seen.reading.ago_seconds or 0.0)


def told_by_shell(end: r.ProcessEnded) -> int | None:
    """The signal that ended the child of a shell, which ends with 128 and its number then (POSIX.1, shell language 2.8.2)."""
    number = end.exit_code - SHELL_ADDS if end.exit_code is not None else 0
    return number if number > 0 and number in signal.valid_signals() else None


def raised_for(case: Case) -> int | None:
    """The signal that an error stands for: Python raises upon SIGINT, and torchrun upon any, so as to end its ranks first."""
    words = traceback_of(case)
    if words is None:
        return _asked_to_end(case)
    if words.exception == "KeyboardInterrupt":
        return signal.SIGINT
    found = _SIGNALLED.search(words.text) if words.exception.endswith("SignalException") else None
    return int(found[1]) if found else None


def ended_by(case: Case) -> int | None:
    """The signal that ended the job, whoever tells it."""
    end = ending(case)
    return None if end is None else end.signal or told_by_shell(end) or raised_for(case)


def _asked_to_end(case: Case) -> int | None:
    """The signal that went to the job through ``run`` just before, where it ended with a bad code and no word: it heard."""
    end = ending(case)
    if end is None or not end.exit_code:
        return None
    since = ended_at(case, end) - HEARS_SECONDS
    asked = [one for one in case.events if one.kind == "signal" and one.text == TERMINATES and one.at >= since]
    return asked[-1].facts.get("signal") if asked else None


def ended_well(case: Case, end: r.ProcessEnded) -> bool:
    """True if the job ended with 0 and no rank raised: whatever failed beside it or below it, it got over."""
    return end.exit_code == 0 and traceback_of(case) is None


def ended_at(case: Case, end: r.ProcessEnded) -> float:
    """When that end was first seen."""
    seen = case.history.series(r.ProcessEnded, end.pid)
    return next(one.at for one in seen if one.reading.start_ticks == end.start_ticks)


def traceback_of(case: Case) -> r.Traceback | None:
    """The first error, as the agent kept it, of those that ended the job: the others followed from it.

    An error of a rank, or of the process whose end is told, did. What they started may fail and be got over (a trial of a
    search), so an error there counts only where one of theirs, or their end with another code than 0, followed at once.
    Ranks that were restarted count by their newest generation: the launcher got over the errors before.
    """
    end = ending(case)
    if end is None:
        return None
    kept = sorted(case.history.every(r.Traceback), key=raised_when)
    own = [one for one in kept if one.reading.pid in _answering(case, end) - _got_over(case)]
    if not own and (not end.exit_code or end.signal):
        return None
    last = raised_when(own[0]) if own else ended_at(case, end) + LOOKS_APART_SECONDS
    before = [
        one for one in kept if last - FOLLOWS_SECONDS <= raised_when(one) <= last and _below(case, one.reading.pid)
    ]
    first = min([*own[:1], *before[:1]], key=raised_when, default=None)
    return first.reading if first is not None else None


def _answering(case: Case, end: r.ProcessEnded) -> set[int]:
    """Processes whose errors are the job's: its ranks, and unless the job ended with 0 its launchers, the one that is told among them."""
    ranks = {rank.pid for rank in case.job.ranks}
    if end.exit_code == 0:
        return ranks - {end.pid}
    return ranks | {end.pid} | {one.pid for one in case.job.members.values() if one.role == "launcher"}


def _below(case: Case, pid: int) -> bool:
    """True if the newest ranks or an unknown parent started a process, and it did not outlive its error (a worker can)."""
    member = case.job.members.get(pid)
    if member is None:
        return True
    newest = member.rank_pid is None or member.rank_pid in {rank.pid for rank in case.job.ranks}
    return member.role != "rank" and newest and not (member.alive and member.role == "worker")


def used_a_gpu(case: Case) -> bool:
    """True if a rank of the job used a GPU, or no rank was seen alive: many failures of a GPU leave the same exit code or signal."""
    return not case.job.ranks or any(cards_of(case.history, rank.pid).uuids for rank in case.job.ranks)


def last_words(words: r.Traceback | r.ThreadError) -> str:
    """The line of a traceback that says what was raised; a message of several lines goes on below it."""
    lines = words.text.strip().splitlines() or [""]
    name = words.exception.partition(":")[0].rsplit(".", 1)[-1]
    said = (line for line in reversed(lines) if name and name in line.partition(":")[0] and not line.startswith(" "))
    return next(said, lines[-1])[:LONGEST_WORDS]


def raised_at(words: r.Traceback | r.ThreadError) -> str | None:
    """The innermost frame of the program's own in a traceback, or else of any, ``function (file:line)``."""
    frames = [r.Frame(match["function"], match["file"], int(match["line"])) for match in _FRAME.finditer(words.text)]
    own = [frame for frame in frames if is_user(frame)]
    return show((own or frames)[-1]) if frames else None
