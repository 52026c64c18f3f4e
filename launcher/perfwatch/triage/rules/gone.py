"""The job has ended: out of memory, by a fault of its GPU, by an error of its own, by a signal, or as it should.

``ends.gone`` says which end counts (``ending``) and which error came first (``traceback_of``).
"""

import re
import signal
from dataclasses import replace
from functools import partial
from itertools import islice, pairwise

from perfwatch.failures import forms
from perfwatch.triage.cards.whose import index_of, lost_cards, name_of
from perfwatch.triage.cards.xids import CONSEQUENCES, CORRECTED, PROGRAM, Announced, announced, of_job, used_cards
from perfwatch.triage.case import Case
from perfwatch.triage.ends import gone
from perfwatch.triage.history import Seen
from perfwatch.triage.ranks.groups import FEW
from perfwatch.triage.roles.job import Member
from perfwatch.triage.roles.placement import RankGaps, launches
from perfwatch.triage.rule import Cause, Facts, Rule, Saw
from perfwatch.triage.waits.node import culprit, node_of
from perfwatch.triage.words.frames import show
from perfwatch.verdict import Culprit, Evidence, Finding, Level, Outcome
from perfwatch_probes import readings as r

NEEDS = (r.ProcessEnded,)
OUT_OF_MEMORY = Cause("out_of_memory", "gone", "user_code", NEEDS, also=forms("out_of_memory"))
GPU_FAULT = Cause("gpu_fault", "gone", "gpu", NEEDS, also=forms("gpu_fault"))
CRASHED = Cause("crashed", "gone", "user_code", NEEDS, also=forms("crashed"))
KILLED = Cause("killed", "gone", "unknown", NEEDS, also=forms("killed"))
FINISHED = Cause("finished", "gone", "user_code", NEEDS)

DEVICE_WORDS = ("CUDA out of memory", "HIP out of memory")
OOM_WORDS = ("OutOfMemoryError", "MemoryError", "CUDA out of memory", "DefaultCPUAllocator: can't allocate memory")
CUDA_WORDS = ("CUDA error", "CUDA driver error", "cudaError", "AcceleratorError", "uncorrectable", "ECC")
TRIED = re.compile(r"Tried to allocate (?P<size>[\d.]+ \w+)")
# torch/utils/data/_utils/signal_handling.py, from what the worker's parent is told of its end.
WORKER_KILLED = re.compile(r"DataLoader worker \(pid\(?s?\)? (?P<pid>\d{1,9})\) is killed by signal: Killed")
STEP_SECONDS = 60.0  # a fault of a kernel is raised at the next call that synchronises: within a step
NCCL_TIMEOUT_SECONDS = 900.0  # ranks that wait for one whose GPU failed give up after 600 s, and write their dumps
LONGEST_LINE = 160

NO_MEMORY = OUT_OF_MEMORY.line("""
    {what}
    - not killed: the kernel, its log or the error says that memory ran out
    - next: fewer workers, smaller batches, or a larger memory limit
""")
NO_GPU_MEMORY = OUT_OF_MEMORY.line("""
    pid {pid} ran out of GPU memory{tried}{fullest}
    - not gpu_fault: the allocator refused; the GPU is healthy
    - next: a smaller micro-batch with gradient accumulation, or activation checkpointing;
      PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True if memory is fragmented
""")
FAULT = GPU_FAULT.line("""
    {name} failed: {what}
    - not crashed: the driver itself reported the error
    - next: drain the node; nvidia-smi -q -d ECC,ROW_REMAPPER; reset or replace the card
""")
FAULT_OF_KERNEL = replace(
    FAULT,
    cause=replace(GPU_FAULT, owner="user_code"),
    summary=f"{FAULT.summary}, usually caused by a kernel of the program",
    next=("compute-sanitizer python ... names the kernel and the address",),
)
ENDED = Saw("process", "has ended", "{code}", "exit code 0", of="pid {ended}")
CRASH = CRASHED.line("""
    pid {of} crashed ({code}){said}{unseen}
    - saw process of pid {ended}: has ended | {code} | exit code 0
    - next: read the job's own stderr; sys.exit() with this code leaves no traceback
""")
CRASH_WITH_WORDS = replace(
    CRASH,
    saw=(ENDED, Saw("traceback", "raised", "{last}", "no exception", of="pid {of}")),
    next=("read the traceback in the job's own stderr",),
)
AFTER_A_PEER = (("killed", "no signal to another rank was seen, but one may have been missed"),)
AFTER_A_WORKER = (("out_of_memory", "no OOM kill was seen, but one may have been missed"),)
LATE_WORDS = (
    "a CUDA error is raised at a later call than the one that failed: CUDA_LAUNCH_BLOCKING=1 shows which, and the "
    "device's own words (an assertion, an index) stand in stderr above"
)
BY_SIGNAL = KILLED.line("""
    pid {pid} was ended by {name}[, sent by {sender}]{code}{calls}
    - saw process of pid {ended}: ended by a signal | {shown} | exit code 0
    - not out_of_memory: no OOM kill in the control group's counter or the kernel log
    - next: dmesg | tail -50
    - next: sacct -j JOBID (or the scheduler's own log)
""")
# Not the kernel's: a person, a shell, a scheduler or a launcher sends them.
REQUESTS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
BY_REQUEST = replace(
    BY_SIGNAL, next=("sacct -j JOBID, kubectl describe pod, or the launcher's own log, says who ended it",)
)
BY_INTERRUPT = replace(
    BY_SIGNAL,
    next=("if Ctrl-C was intended, nothing; otherwise the log of the launcher or scheduler shows who sent it",),
)
OF_A_HANG = ("why it hung before that: perfwatch replay",)
WELL = FINISHED.line("""
    the job (pid {ended}) has ended{how}
    - saw process of pid {ended}: has ended | exit code {code}
""")


def judge_out_of_memory(case: Case) -> Outcome:
    """Fires if a process of the job ended and the kernel, its log or the error says that memory ran out."""
    end = gone.ending(case)
    evidence = _of_memory(case, end) if end is not None else ()
    if not evidence or end is None:
        return None
    words = gone.traceback_of(case)
    if words is not None and any(word in words.text for word in DEVICE_WORDS):
        return _on_device(case, end.pid, words.text, evidence)
    victims = _victims(case, end)
    if words is not None and victims != (end.pid,) and words.pid not in victims:
        last = gone.last_words(words)
        evidence += (case.saw("traceback", f"pid {words.pid}", "failed after that", last, "no exception"),)
    culprits = tuple(_blamed(case, pid, end) for pid in victims)
    return NO_MEMORY.finding(case, culprits, Level.CERTAIN, before=evidence, what=_out_of_memory(case, victims, end))


def _on_device(case: Case, pid: int, words: str, evidence: tuple[Evidence, ...]) -> Finding:
    """The allocator of the GPU refused: how much was asked for, and how full the GPU was."""
    tried = TRIED.search(words)
    samples = ((seen.reading.memory_used_bytes or 0, seen.reading.uuid) for seen in case.history.every(r.GpuSample))
    fullest, uuid = max(samples, default=(0, ""))
    card = case.history.latest(r.Gpu, uuid)
    total = card.reading.memory_bytes if card is not None else None
    held = f"{fullest / 2**30:.1f} GiB" + (f" of {total / 2**30:.1f}" if total else "")
    seen = (case.saw("nvml", name_of(case.history, uuid), "most memory seen in use", held),) if fullest else ()
    culprit = Culprit(pid=pid, rank=case.job.rank_of(pid), gpu=index_of(case.history, uuid))
    asked = f": it asked for {tried['size']} at once" if tried else ""
    filled = f"; the card was seen holding {held}" if fullest else ""
    return NO_GPU_MEMORY.finding(
        case, (culprit,), Level.CERTAIN, before=(*evidence, *seen), tried=asked, fullest=filled
    )


def _of_memory(case: Case, end: r.ProcessEnded) -> tuple[Evidence, ...]:
    """What says that memory ran out."""
    found = [
        case.saw("cgroup", path, "the kernel killed for memory here", f"oom_kill +{kills}", "+0")
        for path, kills in _oom_kills(case, end).items()
    ]
    found += [
        case.saw("kernel_log", f"pid {one.reading.pid}", "OOM kill", one.reading.text[:LONGEST_LINE], "none", one.at)
        for one in _logged_kills(case, end)
    ]
    words = gone.traceback_of(case)
    if words is not None and any(word in words.text for word in OOM_WORDS):
        raised = words.exception or "out of memory"
        found.append(case.saw("traceback", f"pid {words.pid}", "out of memory", raised, "no exception"))
    return tuple(found)


def _victims(case: Case, end: r.ProcessEnded) -> tuple[int, ...]:
    """The processes that were killed for memory: by the kernel's log, or the first that SIGKILL ended, or torch's words.

    The process that ended the job if it is one of them, or if nothing else is known.
    """
    named = tuple(dict.fromkeys(one.reading.pid for one in _logged_kills(case, end) if one.reading.pid is not None))
    if not named and _oom_kills(case, end):
        killed = (one for _, one in _ends_by_sigkill(case) if one.ended and one.ended.signal == signal.SIGKILL)
        named = tuple(one.pid for one in islice(killed, 1)) or _lost_worker(case)
    return (end.pid,) if not named or end.pid in named else named


def _logged_kills(case: Case, end: r.ProcessEnded) -> list[Seen[r.KernelMessage]]:
    """OOM kills of the job in the kernel's log; of a job that ended well only those of its ranks: it got over the others."""
    kills = [seen for seen in case.history.every(r.KernelMessage) if seen.reading.kind == "oom_kill"]
    ours = set(case.job.members)
    if gone.ended_well(case, end):
        ours = {rank.pid for rank in case.job.ranks} - {end.pid}
    return [seen for seen in kills if seen.reading.pid in ours]


def _oom_kills(case: Case, end: r.ProcessEnded) -> dict[str, int]:
    """By control group of the job: the OOM kills in it at the time when a process of the job ended that may be the victim.

    A group is often not the job's alone: a notebook in the same container or a build in the same terminal may be the victim.
    """
    ends = [] if gone.ended_well(case, end) else _ends_by_sigkill(case)
    found: dict[str, int] = {}
    for (path,) in case.history.entities(r.Cgroup):
        for earlier, later in pairwise(case.history.series(r.Cgroup, path)):
            more = (later.reading.oom_kills or 0) - (earlier.reading.oom_kills or 0)
            since, until = earlier.at - gone.LOOKS_APART_SECONDS, later.at + gone.LOOKS_APART_SECONDS
            if earlier.reading.oom_kills is not None and more > 0 and any(since <= at <= until for at, _ in ends):
                found[path] = found.get(path, 0) + more
    return found


def _ends_by_sigkill(case: Case) -> list[tuple[float, Member]]:
    """When a process of the job ended by SIGKILL, as the kernel or a shell says, or in a way that was not seen; in order."""
    found = []
    for member in case.job.members.values():
        end = member.ended
        number = (end.signal or gone.told_by_shell(end)) if end is not None else None
        if end is not None and (number == signal.SIGKILL or (number is None and end.exit_code is None)):
            found.append((gone.ended_at(case, end), member))
    return sorted(found, key=lambda one: one[0])


def _lost_worker(case: Case) -> tuple[int, ...]:
    """The DataLoader worker that SIGKILL ended, as torch says: by the OOM killer or by another sender."""
    words = gone.traceback_of(case)
    found = WORKER_KILLED.search(words.text) if words is not None else None
    return (int(found["pid"]),) if found and int(found["pid"]) in case.job.members else ()


def _blamed(case: Case, pid: int, end: r.ProcessEnded) -> Culprit:
    """A process that was killed, where it was last seen; of the one that ended the job only its number is known."""
    if pid == end.pid:
        return Culprit(pid=pid, rank=case.job.rank_of(pid))
    return culprit(node_of(case.history, case.job, pid))


def _out_of_memory(case: Case, victims: tuple[int, ...], end: r.ProcessEnded) -> str:
    """Which process ran out of memory, how large it was seen, and which process ended because of it."""
    own = victims == (end.pid,)
    usages = (one for pid in (case.job.members if own else victims) for one in case.history.series(r.ProcessUsage, pid))
    sizes = [seen.reading.resident_bytes for seen in usages]
    size = f"largest resident size seen: {max(sizes, default=0) / 2**30:.1f} GiB"
    if own:
        return f"pid {end.pid} ran out of memory ({size})"
    last = show(node_of(case.history, case.job, victims[0]).frame)
    known = ", ".join([f"last seen at {last}"] * bool(last) + [size] * bool(sizes))
    were = f" and {len(victims) - 1} more were" if len(victims) > 1 else " was"
    failed = "failed because of that" if end.exit_code or gone.traceback_of(case) is not None else "has ended since"
    return f"{_name(case, victims[0])}{were} killed because memory ran out{f' ({known})' if known else ''}; pid {end.pid} {failed}"


def _name(case: Case, pid: int) -> str:
    member = case.job.members[pid]
    if member.role == "rank":
        return f"pid {pid}" if member.rank is None else f"rank {member.rank} (pid {pid})"
    kind = "DataLoader worker" if member.role == "worker" else "child process"
    owner = f"rank {member.rank}" if member.rank is not None else f"pid {member.rank_pid}"
    return f"{kind} {pid} of {owner}" if member.rank_pid is not None else f"process {pid}"


def judge_gpu_fault(case: Case) -> Outcome:
    """Fires if the job has ended and the driver reported a fault of one of its GPUs."""
    end = gone.ending(case)
    if end is None or gone.ended_well(case, end):
        return None
    ended = gone.ended_at(case, end)
    fatal, counted = _fatal(case, ended), _counted(case, ended)
    if not fatal and not counted:
        return None
    words = gone.traceback_of(case)
    said = words is not None and any(word in words.text for word in CUDA_WORDS)
    if words is not None and not said and not any(one.kind != PROGRAM for one in fatal):
        return None  # an exception that has nothing to do with a GPU
    claim, name = "the driver reported an error", partial(name_of, case.history)
    events = (case.saw(one.source, name(one.card), claim, one.shown(), "none", one.at) for one in fatal)
    evidence = (*events, *counted)
    if said and words is not None:
        claim = "ended by a CUDA error"
        evidence += (case.saw("traceback", f"pid {words.pid}", claim, words.exception, "no exception"),)
    program = bool(fatal) and all(one.kind == PROGRAM for one in fatal)
    what, card = (fatal[0].shown(), fatal[0].card) if fatal else (evidence[0].claim, evidence[0].entity)
    culprit = Culprit(pid=end.pid, rank=case.job.rank_of(end.pid), gpu=index_of(case.history, card))
    line = FAULT_OF_KERNEL if program else FAULT
    return line.finding(case, (culprit,), Level.CERTAIN, before=evidence, name=name(card), what=what)


def _fatal(case: Case, ended: float) -> list[Announced]:
    """What the driver reported of the job's GPUs when it ended, each number once for a GPU."""
    found: dict[tuple[int, str], Announced] = {}
    for one in announced(case):
        since = ended - (STEP_SECONDS if one.kind == PROGRAM else NCCL_TIMEOUT_SECONDS)
        ends_jobs = one.kind != CORRECTED and one.xid not in CONSEQUENCES
        if ends_jobs and since <= one.at <= ended + gone.LOOKS_APART_SECONDS and of_job(case, one):
            found.setdefault((one.xid, one.card), one)
    return list(found.values())


def _counted(case: Case, ended: float) -> tuple[Evidence, ...]:
    """Memory errors that NVML counted, and GPUs that the driver lost."""
    found, used, seconds = [], used_cards(case), case.at - ended + NCCL_TIMEOUT_SECONDS
    for (uuid,) in case.history.entities(r.GpuErrors):
        grown = case.history.growth(r.GpuErrors, uuid, of=lambda e: e.uncorrected, seconds=seconds)
        if grown is not None and grown[0] > 0:
            found.append(case.saw("ecc", uuid, "uncorrectable memory errors", f"+{grown[0]:.0f}", "+0"))
    for seen in lost_cards(case.history):
        uuid = seen.reading.uuid
        found.append(case.saw("nvml", uuid, "the driver no longer reaches the card", "lost", "answers", seen.at))
    return tuple(one for one in found if used is None or one.entity in used)


def judge_crashed(case: Case) -> Outcome:
    """Fires if the job ended with a bad exit code or a traceback."""
    end = gone.ending(case)
    if end is None:
        return None
    words = gone.traceback_of(case)
    if words is not None and gone.failed_first(case, end, words):
        words = None
    if words is None and (end.exit_code in (0, None) or end.signal or gone.told_by_shell(end)):
        return None
    if gone.raised_for(case):
        return None
    pid, worker = words.pid if words is not None else end.pid, _lost_worker(case)
    unseen = "" if words is not None else _unseen_ranks(case)
    after_another = bool(worker or unseen) or (words is not None and gone.lost_a_peer(words))
    # The job itself may end with 0 all the same, and a GPU that fails leaves the same code.
    unsure = end.exit_code == 0 or after_another or (words is None and gone.used_a_gpu(case))
    line, last = CRASH, ""
    if words is not None:
        line, last = CRASH_WITH_WORDS, gone.last_words(words)
        line = replace(line, but=AFTER_A_PEER) if gone.lost_a_peer(words) else line
    if worker:
        line = replace(line, but=AFTER_A_WORKER)
    also = (*([LATE_WORDS] if "CUDA error" in last else []), *(f"dmesg | grep -i 'killed process {w}'" for w in worker))
    at = gone.raised_at(words) if words is not None else None
    # The main process raises wherever it is when it hears of the worker.
    culprit = _blamed(case, worker[0], end) if worker else Culprit(pid=pid, rank=case.job.rank_of(pid), frame=at)
    facts = Facts(of=pid, ended=end.pid, code=_code(end), last=last, said=f": {last}" if last else "", unseen=unseen)
    line = replace(line, next=(*line.next, *also))
    return line.finding(case, (culprit,), Level.MEDIUM if unsure else Level.CERTAIN, **facts)


def _code(end: r.ProcessEnded) -> str:
    if end.exit_code is not None:
        return f"exit code {end.exit_code}{' of the job itself' if end.exit_code == 0 else ''}"
    return f"signal {end.signal}" if end.signal else "exit code unknown"


def _unseen_ranks(case: Case) -> str:
    """That some ranks ended before monitoring started, which may be why this one ended; empty if all were seen."""
    size, seen = case.job.world_size or 0, {rank.rank for rank in case.job.ranks}
    missing = RankGaps(seen, size)
    if not missing or len(missing) == size:
        return ""
    named = ", ".join(map(str, islice(missing, FEW))) + (", ..." if len(missing) > FEW else "")
    ranks, which = ("rank", "it") if len(missing) == 1 else ("ranks", "one of them")
    return f"; of {ranks} {named} nothing was seen: {which} may have ended first"


def judge_killed(case: Case) -> Outcome:
    """Fires if the job was ended by a signal."""
    end, number = gone.ending(case), gone.ended_by(case)
    if end is None or not number or number not in signal.valid_signals():
        return None
    name = signal.Signals(number).name
    # The exit code of a shell is about its child, the rank if there is only one.
    of_child = not end.signal and gone.told_by_shell(end) is not None
    pid = case.job.ranks[0].pid if of_child and len(case.job.ranks) == 1 else end.pid
    behind = gone.left_behind_at_the_end(case)
    top = case.history.latest(r.ProcessEnded, *case.session.root_pids[:1])  # some launchers do not fail for their ranks
    code = top.reading.exit_code if top is not None and top.reading.pid != pid else None
    shown = name if end.signal or end.exit_code is None else f"exit code {end.exit_code}, {name}"
    more: tuple[Evidence, ...] = ()
    if behind is not None:
        claim = "its ranks had made different numbers of calls when they wrote their dumps"
        equal = "the same in every rank"
        more = (case.saw("flight_recorder", f"group {behind.group}", claim, behind.reach, equal, behind.at),)
    # SIGKILL without a log of the kernel may be its OOM killer's; torch aborts for a CUDA error, whose words were not kept.
    unexplained = number == signal.SIGKILL or (number == signal.SIGABRT and gone.used_a_gpu(case))
    facts = Facts(ended=end.pid, name=name, shown=shown, calls=f"; {gone.last_calls(behind)}" if behind else "")
    asked = gone.asked_to_end(case, end)
    facts["sender"] = (asked.get("sender") or None) if asked.get("signal") == number else None
    facts["code"] = f"; the job itself ended with exit code {code}" if code is not None else ""
    culprit = Culprit(pid=pid, rank=case.job.rank_of(pid))
    line = BY_INTERRUPT if number == signal.SIGINT else BY_REQUEST if number in REQUESTS else BY_SIGNAL
    line = line if gone.hung_before(case) is None else replace(line, next=OF_A_HANG)
    return line.finding(case, (culprit,), Level.MEDIUM if unexplained else Level.CERTAIN, more=more, **facts)


def judge_finished(case: Case) -> Outcome:
    """Fires if the job has ended and nothing failed."""
    end = gone.ending(case)
    if end is None or end.signal or end.exit_code not in (0, None):
        return None
    known = end.exit_code == 0
    if not known and any((top := case.job.members.get(pid)) and top.alive for pid in case.session.root_pids):
        return None  # a script between two programs, or a launcher that is about to tell the exit code
    member, ranks = case.job.members.get(end.pid), case.job.ranks
    # A Python program that started the ranks itself may ignore how they end, which torchrun, srun and mpirun do not.
    by_hand = member is not None and member not in ranks and member.process.python and not launches(member.process)
    seen = all(one.ended is not None and (one.ended.exit_code is not None or one.ended.signal) for one in ranks)
    unvouched = known and by_hand and not seen
    how = " with exit code 0" if known else "; its exit code is not known"
    how += "; how its ranks ended was not seen" if unvouched else ""
    sure = Level.CERTAIN if known and not unvouched else Level.MEDIUM
    return WELL.finding(case, (), sure, ended=end.pid, how=how, code=end.exit_code if known else "unknown")


RULES = (
    Rule(OUT_OF_MEMORY, judge_out_of_memory),
    Rule(GPU_FAULT, judge_gpu_fault),
    Rule(CRASHED, judge_crashed),
    Rule(KILLED, judge_killed),
    Rule(FINISHED, judge_finished),
)
