"""The training thread spends its time writing output."""

from perfwatch.triage.cards.gpu import regimes, unseen
from perfwatch.triage.case import Case
from perfwatch.triage.moving.motion import motion
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares.held_back import held_back
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.shares.rather_computes import rather_computes
from perfwatch.triage.shares.saving import stores_rows, syncs_little
from perfwatch.triage.slowness import slow, telling, worst
from perfwatch.triage.waits.devices import in_sync
from perfwatch.triage.words.code import line_of
from perfwatch.triage.words.frames import any_tag, inner_tags, show, tags, user_frame
from perfwatch.verdict import Alternative, Outcome
from perfwatch_probes.readings import Stack, Thread

CAUSE = Cause("slow_output", "slow", "user_code", (Stack, Thread))

PRINTING = frozenset({"print", "pprint"})
WRITING = frozenset({"write", "flush", "writelines"})
STREAMS = frozenset({"stdout", "stderr", "__stdout__", "__stderr__"})
LOGGING = frozenset("info debug warning error critical exception log".split())
OUTPUT, PICTURES, ROWS = "output", "pictures", "rows of a database"
ADVICE = {
    OUTPUT: "redirect the output to a file, and leave it to the kernel when that goes to the disk",
    PICTURES: "hand pictures to a thread or a process that encodes them",
    ROWS: "put the rows of many steps into one transaction (executemany)",
}
HALF = 0.5
STANDS_SECONDS, LONGER = 2.0, 3.0  # times the longest write before


def judge(case: Case) -> Outcome:
    """Fires when a working rank spends its time in output, and writes."""
    found = worst(case, lambda rank, seen: max(_writing(case, rank, seen), held_back(case, rank)) * _writes(case, rank))
    if found is None:
        return None
    rank, seen, lost = found
    frame = seen.top_line(lambda stack: _prints(case, stack)) or seen.top_line()
    what = _what(case, seen, HALF * lost)
    return slow(
        case,
        CAUSE,
        rank,
        lost=lost,
        frame=frame,
        summary=f"the training thread writes {what} {lost:.0%} of the time at {show(frame)}",
        evidence=telling(
            case,
            f"pid {rank.pid}",
            ("stack", "prints or logs", _writing(case, rank, seen), f"{seen.samples} samples", "below 2 %"),
            ("syscall", "blocked in a write that has to wait", held_back(case, rank), "looks", "0 %"),
        ),
        alternatives=(Alternative(cause="blocked_pipe", refuted_by="the writes go through, slowly"),),
        next=("write every hundredth step", ADVICE[what]),
    )


def _what(case: Case, seen: Profile, most: float) -> str:
    if seen.share("picture") >= most:
        return PICTURES
    return ROWS if seen.share_where(lambda stack: stores_rows(case, stack)) >= most else OUTPUT


def _prints(case: Case, stack: Stack) -> bool:
    found = tags(stack)
    if "log_lock" in found:
        return False  # who waits for its turn writes nothing
    if any_tag(found, "log", "tracker", "picture") or syncs_little(case, stack) or stores_rows(case, stack):
        return True
    if _for_device(case, stack):
        return False  # print(loss.item()): what takes the time is the wait for the value
    frame = user_frame(stack)
    called = inner_tags(stack)  # print(model(x)) makes a pass; a hook that prints is within one
    if frame is None or any_tag(called, "save", "backward", "optimizer", "forward", "loader", "http", "compile"):
        return False
    line = line_of(case.history, frame)
    return line is not None and any(map(_is_output, line.calls)) and not rather_computes(case, stack, line.calls)


def _for_device(case: Case, stack: Stack) -> bool:
    """Whether the line waits for a GPU that this process uses, seen or not; writes that block are seen by themselves."""
    uses = bool(regimes(case.history, stack.pid)) or unseen(case.history, stack.pid)
    return uses and in_sync(case.history, stack)


def _is_output(call: str) -> bool:
    """Whether a called name writes for people to read: ``print``, ``sys.stdout.write``, ``logger.info``."""
    owner, _, name = call.rpartition(".")
    if name in WRITING:
        return owner.rsplit(".", 1)[-1] in STREAMS
    return name in PRINTING or (name in LOGGING and "log" in owner.lower())


def _writes(case: Case, rank: Member) -> bool:
    """Whether its training thread makes any call that reads or writes, as far as the kernel counts them."""
    return motion(case.history, rank.pid, case.progress[rank.pid].thread).io_calls != 0


def _writing(case: Case, rank: Member, seen: Profile) -> float:
    """Share of the samples that write; a loop comes back to it, and what is written once at its end takes none of its time.

    Nor does one write that is not over yet and takes far longer than those before: it may never be.
    """

    def prints(stack: Stack) -> bool:
        return _prints(case, stack)

    *before, last = seen.runs(prints) or [(0.0, 0.0)]
    usual = max((end - begin for begin, end in before), default=0.0)
    rests = motion(case.history, rank.pid, case.progress[rank.pid].thread).ran_ago_seconds or 0.0
    takes = max(last[1] - last[0], rests)
    lasts = last[1] >= seen.sights[-1].at and takes > max(STANDS_SECONDS, LONGER * usual)
    return seen.share_where(prints) if before and not lasts else 0.0


RULES = (Rule(CAUSE, judge),)
