"""/dev/shm is full or nearly so."""

from collections import Counter

from perfwatch.triage.case import Case
from perfwatch.triage.history import Seen
from perfwatch.triage.moving.progress import besides_training
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.shares.saving import saves
from perfwatch.triage.slowness import FEW_SAMPLES, WINDOW_SECONDS, behind, noted, slow
from perfwatch.triage.words.frames import user_frame
from perfwatch.verdict import Alternative, Outcome
from perfwatch_probes.readings import Frame, Host, ProcessEnded

CAUSE = Cause("shared_memory_exhausted", "slow", "node", (Host,))

FULL_SHARE = 0.9
PLANNED = 0.78  # workers that end in order may be started anew for each epoch, beside a data set that fills /dev/shm
WRITES = 0.2  # of the samples that write: who reads back what was written now and then is another function
LATELY_SECONDS = 5.0  # a loader that fails for want of room takes its batches along: there is room for a moment


def judge(case: Case) -> Outcome:
    """Fires when the job's /dev/shm is almost full."""
    lately = reversed(case.history.series(Host, seconds=LATELY_SECONDS))
    host = max(lately, key=_used_share, default=case.latest_host())
    if host is None or (used := _used_share(host)) < FULL_SHARE:
        return None
    newest = case.latest_host()
    now = "is" if newest is None or newest.at <= host.at else "was just now"
    filled, room = (host.reading.shm_used_bytes or 0) / 2**20, (host.reading.shm_total_bytes or 0) / 2**20
    for rank in case.ranks:
        seen = case.profile(rank, WINDOW_SECONDS)
        ended = [worker for worker in case.job.workers(rank.pid) if _ended_lately(case, worker)]
        failed = any(worker.ended is not None and worker.ended.exit_code != 0 for worker in ended)
        died = any(worker.ended is not None and (worker.ended.exit_code or worker.ended.signal) for worker in ended)
        if not seen.samples or (case.progress[rank.pid].kind == "still" and not ended):
            continue
        saving = seen.share_where(lambda stack: saves(case, stack))
        lost = 1.0 if failed else saving + seen.share("loader_start", "loader_stop")
        return slow(
            case,
            CAUSE,
            rank,
            explains=behind(lost),
            lost=lost,
            confidence=noted(
                lost, min(0.85 if seen.samples >= FEW_SAMPLES else 0.75, 1.0 if died or saving else PLANNED)
            ),
            frame=_writer(case, seen) or besides_training(seen),
            summary=f"/dev/shm {now} {used:.0%} full ({filled:,.0f} of {room:,.0f} MiB)",
            evidence=(case.saw("host", "/dev/shm", "almost full", f"{used:.0%} used", "below 90 %", host.at),),
            alternatives=(Alternative(cause="memory_pressure", refuted_by="it is /dev/shm that is full"),),
            next=(
                "docker run --shm-size=8g, or an emptyDir with medium: Memory",
                "df -h /dev/shm; ls -lS /dev/shm | head",
            ),
        )
    return None


def _used_share(host: Seen[Host]) -> float:
    """Of the /dev/shm that the job sees; 0 where nobody could look."""
    return (host.reading.shm_used_bytes or 0) / (host.reading.shm_total_bytes or 1)


def _ended_lately(case: Case, worker: Member) -> bool:
    """Whether a worker has ended just now: of itself, or by order of a loader that fails and ends them all, which takes seconds."""
    gone = case.history.latest(ProcessEnded, worker.pid)
    return gone is not None and gone.at >= case.at - WINDOW_SECONDS


def _writer(case: Case, seen: Profile) -> Frame | None:
    """The busiest line of the function that takes most time, of those that write: its opening and syncing of files counts."""
    at = [(frame, one.reading) for one in seen.sights if (frame := user_frame(one.reading)) is not None]
    saving: Counter[tuple[str, str]] = Counter()
    for frame, stack in at:
        if saves(case, stack):
            saving[_function(frame)] += stack.samples
    writers = {function for function, samples in saving.items() if samples >= WRITES * saving.total()}
    spent: Counter[tuple[str, str]] = Counter()
    for frame, stack in at:
        if _function(frame) in writers:
            spent[_function(frame)] += stack.samples
    if not spent:
        return None
    busiest = spent.most_common(1)[0][0]
    return seen.top_line(lambda stack: (frame := user_frame(stack)) is not None and _function(frame) == busiest)


def _function(frame: Frame) -> tuple[str, str]:
    return frame.function, frame.file


RULES = (Rule(CAUSE, judge),)
