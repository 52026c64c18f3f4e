"""Which source lines of the job are read: the lines where threads stand, and those where training spends its time."""

from perfwatch.triage.case import Case
from perfwatch.triage.history import History
from perfwatch.triage.questions import is_standard, user_frames
from perfwatch.watching.probes_of_job import Look
from perfwatch_probes import readings as r

FRESH_SECONDS = 2.0  # an older stack is not where a thread stands
BUSY_SECONDS = 6.0  # over which the busiest lines are counted
MOST_CALLERS = 4  # of the program's own frames of one stack
MOST_LINES = 8  # newly read per round
MOST_RANKS = 6


class Sources:
    """Asks for the text of each line once.

    Args:
        look: reads it, in a killable child.
    """

    def __init__(self, look: Look) -> None:
        self._look = look
        self._read: set[tuple[str, int]] = set()

    def of_threads(self, history: History) -> None:
        """The lines at which threads stand now."""
        fresh = 0
        for pid, tid in history.entities(r.Stack):
            seen = history.latest(r.Stack, pid, tid)
            if seen is None or seen.at <= history.at - FRESH_SECONDS:
                continue
            for frame in _standing(seen.reading):
                fresh += self._line(pid, frame)
                if fresh >= MOST_LINES:
                    return

    def of_busiest(self, case: Case) -> None:
        """The lines where the training threads spend their time, and those that lead there: rules ask what these call."""
        for rank in case.ranks[:MOST_RANKS]:
            seen = case.profile(rank, BUSY_SECONDS)
            for frame in (*seen.busiest(MOST_LINES), *seen.callers(MOST_LINES)):
                self._line(rank.pid, frame)

    def _line(self, pid: int, frame: r.Frame) -> bool:
        """Read a line unless it was read before, or is in no file (``<string>``); whether it was read now."""
        if not frame.file.startswith("/") or (frame.file, frame.line) in self._read:
            return False
        self._read.add((frame.file, frame.line))
        self._look.source(pid, frame)
        return True


def _standing(stack: r.Stack) -> tuple[r.Frame, ...]:
    """The program's own frames of a stack; of a library's innermost one too: it says whether a lock of Python's is asked for."""
    own = user_frames(stack)[:MOST_CALLERS]
    inner = stack.frames[:1]
    return own if not inner or inner[0] in own or is_standard(inner[0]) else (*own, inner[0])
