"""How the job ended, what its processes said last, what that end is called, and whether a launcher starts the ranks again and again."""

import re
import signal
from dataclasses import dataclass
from typing import Any

import msgspec

from perfwatch.actions import retry_of
from perfwatch.failures import ECHO, GENERAL, NAMES, ORIGIN, TORN, named
from perfwatch.recording.recording import TERMINATES, Event
from perfwatch.triage.cards.whose import cards_of
from perfwatch.triage.case import Case
from perfwatch.triage.history import History, Seen
from perfwatch.triage.ranks.groups import FEW, GroupKey, Seat, Standing, recorded_standing
from perfwatch.triage.roles.job import TICKS_PER_SECOND, Member, restarts_before
from perfwatch.triage.roles.placement import launches
from perfwatch.triage.words.frames import is_user, show
from perfwatch.verdict import Finding, Verdict
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
ABORTS_SECONDS = 60.0  # from the dump to the end; torch waits 15 s for all dumps by default
LAST_LINES = 40  # of a traceback
SHORT_LIFE_SECONDS = 600.0  # mean life of a generation: a run that fails once a day is no loop
OUTLIVED = 2.0  # a generation that lives so many times longer than those before it has broken the loop
SOON_SECONDS = 60.0  # a verdict that all is well comes no later


def ending(case: Case) -> r.ProcessEnded | None:
    """The end that matters: of the job's top process if it is gone, else of the ranks if none is left; None while it lives.

    The launcher of ``run`` knows its child's exit code; a rank that was killed first says more than the launcher's own code.
    """
    members = case.job.members
    ranks = case.job.ranks
    if not ranks and not any(member.alive for member in members.values()):
        return next((members[pid].ended for pid in case.session.root_pids if pid in members), None)
    left = any(rank.alive or _returns(case, rank) for rank in ranks) and not _gave_up(case)
    if not ranks or left or _may_start_another(case):
        return None
    ends = (case.history.latest(r.ProcessEnded, *key) for key in case.history.entities(r.ProcessEnded))
    tops = [one.reading for one in ends if one is not None and one.reading.pid in case.session.root_pids]
    before = _got_over(case)
    of_ranks = [rank.ended for rank in ranks if rank.ended is not None and rank.pid not in before]
    first, well = _first_failure(case, of_ranks), any(one.exit_code == 0 for one in tops)
    if first is not None and (not well or (first.signal and len(ranks) > 1)):
        return first
    known = [one for one in (*tops, *of_ranks) if one.exit_code is not None or one.signal]
    return next(iter((*known, *of_ranks)), None)


def _gave_up(case: Case) -> bool:
    """True if the job's top process and a rank have failed, whatever other rank is left behind: nothing starts it again."""
    tops = [case.job.members.get(pid) for pid in case.session.root_pids]
    ended = [top.ended if top is not None else None for top in tops]
    failed = [one is not None and bool(one.exit_code or one.signal) for one in ended]
    return bool(failed) and all(failed) and any(rank.ended and rank.ended.exit_code != 0 for rank in case.job.ranks)


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
    failed = [one for one in ends if one.exit_code or one.signal]
    failed.sort(key=lambda one: (ended_at(case, one), one.signal in ASKED))
    if not failed or failed[0].signal:
        return failed[0] if failed else None
    latest = ended_at(case, failed[0]) + LOOKS_APART_SECONDS
    outright = (e for e in failed if e.signal and e.signal not in FOLLOWING and ended_at(case, e) <= latest)
    return next(outright, failed[0])


def _returns(case: Case, rank: Member) -> bool:
    """True if torchrun lives and has restarts left for this rank."""
    launcher = case.job.members.get(rank.process.parent_pid)
    made, most = restarts_before(rank.process), count(rank.process.environment.get("TORCHELASTIC_MAX_RESTARTS"))
    left = launcher is not None and launcher.alive and made is not None and most is not None and made < most
    return left and rank.ended is not None and rank.ended.exit_code != 0


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

    A launcher that ends the others after an error asks them first (SIGTERM); one that reports the end of a rank has no error of its own.
    """
    if _reports(case, words) and end.signal:
        return True
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


def _reports(case: Case, words: r.Traceback) -> bool:
    """True if a launcher only says that what it had started has failed."""
    raiser, failure = case.job.members.get(words.pid), named(last_words(words))
    launched = raiser is not None and raiser.role == "launcher"
    return launched and failure is not None and failure.cause == "crashed" and failure.weight == ECHO


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


def asked_to_end(case: Case, end: r.ProcessEnded) -> dict[str, Any]:
    """The ``signal`` that went to the job through ``run`` just before its end, and in words its ``sender``; empty without one."""
    since = ended_at(case, end) - HEARS_SECONDS
    asked = [one for one in case.events if one.kind == "signal" and one.text == TERMINATES and one.at >= since]
    return asked[-1].facts if asked else {}


def raised_for(case: Case) -> int | None:
    """The signal that an error stands for: Python raises upon SIGINT, and torchrun upon any, so as to end its ranks first."""
    words, end = traceback_of(case), ending(case)
    if words is None and end is not None and end.exit_code:
        return asked_to_end(case, end).get("signal")  # without a word it heard that
    if words is None:
        return None
    found = _SIGNALLED.search(words.text) if words.exception.endswith("SignalException") else None
    return signal.SIGINT if words.exception == "KeyboardInterrupt" else int(found[1]) if found else None


def ended_by(case: Case) -> int | None:
    """The signal that ended the job, whoever tells it."""
    end = ending(case)
    return None if end is None else end.signal or told_by_shell(end) or raised_for(case)


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
    soon = (one for one in kept if last - FOLLOWS_SECONDS <= raised_when(one) <= last)
    before = [one for one in soon if _below(case, one.reading.pid)]
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


def was_aborted(case: Case) -> bool:
    """True if a rank has aborted, as it does when NCCL's watchdog ends it.

    When a collective has timed out, the watchdog has every rank write what it has called, and aborts the process seconds later (torch,
    ProcessGroupNCCL.cpp: the dump is waited for before the abort). So what lies there is about a job that stood.
    """
    return any(rank.ended is not None and rank.ended.signal == signal.SIGABRT for rank in case.job.ranks)


def left_behind_at_the_end(case: Case) -> Standing | None:
    """The group in which some ranks had called less often than the others; None where the dumps do not tell, or of several."""
    if not was_aborted(case):
        return None
    groups: dict[GroupKey, list[Seen[r.RecordedGroup]]] = {}
    for rank in case.job.ranks:
        for key in case.history.of(r.RecordedGroup, rank.pid):
            last = case.history.latest(r.RecordedGroup, *key)
            if last is not None and _of_the_end(case, rank, last) and last.reading.enqueued is not None:
                groups.setdefault((last.reading.group, last.reading.members), []).append(last)
    whole = [(group, dumps) for (group, members), dumps in groups.items() if len(dumps) >= max(2, len(members))]
    standings = (recorded_standing(group, dumps, 0.0, 0.0) for group, dumps in whole)
    parted = [one for one in standings if one.behind]
    return parted[0] if len(parted) == 1 else None


def last_calls(standing: Standing) -> str:
    """``rank 1 had not come to all_reduce 3199, in which rank 0 waited``."""
    return f"{_listed(standing.behind)} had not come to {standing.operation}, in which {_listed(standing.ahead)} waited"


def _of_the_end(case: Case, rank: Member, dump: Seen[r.RecordedGroup]) -> bool:
    """True if a rank wrote a dump by itself shortly before it ended."""
    if rank.ended is None or dump.reading.origin != "file":
        return False
    before = ended_at(case, rank.ended) - (dump.at - dump.reading.written_ago_seconds)
    return -LOOKS_APART_SECONDS <= before <= ABORTS_SECONDS


def _listed(seats: tuple[Seat, ...]) -> str:
    more = f" and {len(seats) - FEW} more" if len(seats) > FEW else ""
    return ", ".join(seat.name for seat in seats[:FEW]) + more


def called(case: Case, finding: Finding) -> Finding:
    """The same finding with its sub-cause, if the words or the evidence name one of that very cause."""
    words = traceback_of(case)
    texts = [] if words is None else [last_words(words), *reversed(words.text.splitlines()[-LAST_LINES:])]
    texts = [text.strip() for text in (*texts, *(one.observed for one in finding.evidence))]
    found = [(text, one) for text in texts if (one := named(text)) and one.cause == finding.cause and not one.hint]
    telling = [one for text, one in found if not TORN.search(text) and one.name not in GENERAL]
    failures = [one for text, one in found if not (telling and TORN.search(text))]
    failure = next(iter(failures), None)
    if failure is not None and failure.weight != ORIGIN:  # an exception that led to this one may say why
        failure = next((one for one in failures if one.weight == ORIGIN and one.name not in GENERAL), failure)
    if failure is not None and failure.name == "dead_data_worker" and _worker_failed(case):
        failure = NAMES["crashed_data_worker"]
    if failure is None and finding.cause == "out_of_memory" and any(e.witness == "cgroup" for e in finding.evidence):
        failure = NAMES["cgroup_out_of_memory"]
    if failure is None:
        return finding
    hung = hung_before(case) if finding.cause == "killed" else None
    return msgspec.structs.replace(
        finding, sub_cause=failure.name, retry=failure.retry if hung is None else retry_of(hung)
    )


def hung_before(case: Case) -> Verdict | None:
    """What was told of a run that hung until it was ended for that: by its user, a scheduler or a watchdog; None of another."""
    told = [one for one in case.events if one.kind in ("verdict", "retraction") and not _tells_the_end(one)]
    last = told[-1].verdict if told and told[-1].kind == "verdict" else None
    return (
        last if last is not None and last.state == "hung" and ended_by(case) in (*FOLLOWING, signal.SIGKILL) else None
    )


def _tells_the_end(event: Event) -> bool:
    return event.verdict is not None and event.verdict.state == "gone"


def _worker_failed(case: Case) -> bool:
    """True if the kernel says of a DataLoader worker that a signal ended it which is no request and not SIGKILL."""
    ends = (one.ended.signal for one in case.job.members.values() if one.role == "worker" and one.ended is not None)
    return any(number not in (*ASKED, signal.SIGKILL) for number in ends if number)


@dataclass(frozen=True)
class Restarts:
    """A rank that is replaced again and again."""

    rank: int
    processes: int  # generations, the living one included
    seconds: float  # since the first of them started
    proves_in_seconds: float  # then the newest has lived for so much longer than those before it that it lasts


def unproven(case: Case) -> bool:
    """True if the launcher has restarted the ranks once, and within a minute it will be known whether the new ones last."""
    found = restarts(case)
    return found is not None and found.processes == 2 and found.proves_in_seconds <= SOON_SECONDS


def restarts(case: Case) -> Restarts | None:
    """The rank with the most generations; None where nothing is replaced after it failed, or where the newest one lasts."""
    found = [*_watched(case), *(_counted(case, member) for member in case.job.ranks)]
    return max(filter(None, found), key=lambda one: one.processes, default=None)


def _watched(case: Case) -> list[Restarts | None]:
    """Processes of one rank that one and the same launcher started one after the other while we looked, each after a bad end."""
    generations: dict[tuple[int, int], list[Member]] = {}
    for member in case.job.members.values():
        above, rank = case.job.members.get(member.process.parent_pid), member.process.rank
        if rank is not None and member.process.python and above is not None and above.process.rank is None:
            generations.setdefault((rank, above.pid), []).append(member)
    return [_in_a_row(case, rank, members) for (rank, _), members in generations.items()]


def _in_a_row(case: Case, rank: int, members: list[Member]) -> Restarts | None:
    """Generations up to the newest, if it is there because those before it were short and failed: jobs of a script just follow."""
    *before, newest = sorted(members, key=lambda member: member.process.start_ticks)
    failed = sum(_failed(case, member) for member in before)
    if not failed:
        return None
    apart = (newest.process.start_ticks - before[0].process.start_ticks) / TICKS_PER_SECOND
    age, life = _age(case, newest), apart / len(before)
    left = OUTLIVED * life - age if newest.alive else 0.0
    return None if life > SHORT_LIFE_SECONDS or left < 0.0 else Restarts(rank, failed + 1, apart + age, left)


def _failed(case: Case, member: Member) -> bool:
    """True if a process ended badly. How, often only its launcher knows; torchrun and the like start anew what failed, and no other."""
    end = member.ended
    if end is None or end.exit_code == 0:
        return False
    if end.exit_code is not None or end.signal is not None or case.history.series(r.Traceback, member.pid):
        return True
    above = case.job.members.get(member.process.parent_pid)
    return above is not None and launches(above.process)


def _counted(case: Case, member: Member) -> Restarts | None:
    """By the launcher's count in the rank's environment, if the generations before this one were short."""
    times = restarts_before(member.process) or 0
    above = case.job.members.get(member.process.parent_pid)
    if times < 1 or above is None:
        return None
    age, launched = _age(case, member), _age(case, above)
    life = (launched - age) / times
    lasts = life > SHORT_LIFE_SECONDS or age > OUTLIVED * life
    return None if lasts else Restarts(member.rank or 0, times + 1, launched, OUTLIVED * life - age)


def _age(case: Case, member: Member) -> float:
    seen = case.history.latest(r.Process, member.pid)
    return (member.process.age_seconds or 0.0) + case.at - (seen.at if seen is not None else 0.0)
