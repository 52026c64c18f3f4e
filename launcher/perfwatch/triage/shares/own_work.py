"""What a training thread does besides training: Python of the program's own, or libraries that make data.

Tensor arithmetic that the program calls from its own functions looks the same in Python stacks: there the native profile decides.
"""

import re

from perfwatch.triage.history import History
from perfwatch.triage.roles.job import Job
from perfwatch.triage.words.code import calling_line, line_of, names
from perfwatch.triage.words.frames import (
    COMPREHENSIONS,
    MPI_COLLECTIVES,
    MPI_COMMON,
    MPI_POINT_TO_POINT,
    is_user,
    of_tensors,
    short_name,
    tags,
    user_frame,
    user_frames,
)
from perfwatch_probes import readings as r

PROGRAM_WAITS = frozenset({"child_wait", "selector"})
LOADER = frozenset({"fetch", "collate"})  # kinds of work in which a DataLoader makes a batch
# A comprehension of a list, dict or set: from Python 3.12 on (PEP 709) it has no frame of its own.
_INLINED = re.compile(r"[\[{].*\sfor\s.+\sin\s")


def calls_at(history: History, stack: r.Stack) -> frozenset[str]:
    """The names that the program's innermost line calls; none where its text is unknown."""
    line = line_of(history, user_frame(stack))
    return names(line.calls) if line is not None else frozenset()


def lines_around(history: History, stack: r.Stack) -> list[r.SourceLine]:
    """The texts of the program's own lines that a stack is at, innermost first, as far as they were read."""
    return [line for frame in user_frames(stack) if (line := line_of(history, frame)) is not None]


def own_work(stack: r.Stack) -> bool:
    """True if a stack is in no known kind of work at all: the program's own code, or a library without a tag."""
    return bool(stack.frames) and not tags(stack) - {"profiler"}


def rests(history: History, stack: r.Stack) -> bool:
    """True if a thread stands at a line of its own that sleeps: it does nothing there, for whatever reason."""
    line = calling_line(history, stack)
    return line is not None and "sleep" in names(line.calls)


def takes_a_lock(history: History, stack: r.Stack) -> bool:
    """True if a stack stands at a line of the program that takes a lock, in a wait of ``threading``, or before a logger's handler."""
    if "log_lock" in tags(stack):
        return True
    if "thread_wait" in tags(stack) and tags(stack) <= {"thread_wait"}:
        return True
    line = calling_line(history, stack)
    if line is None:
        return False
    text = line.text.strip()
    return "acquire" in names(line.calls) or (text.startswith("with ") and not line.calls)


def own_python(history: History, stack: r.Stack) -> bool:
    """Own work that is plainly Python or a library other than torch: a comprehension, or frames of such a library inside."""
    if not own_work(stack):
        return False
    inner = stack.frames[0]
    if not is_user(inner):
        return not of_tensors(inner)
    return in_comprehension(history, inner)


def awaits_a_program(stack: r.Stack) -> bool:
    """True if a thread waits in ``subprocess`` for a program that the program's own code has started: that does its work."""
    found = tags(stack)
    return (
        "child_wait" in found
        and found <= PROGRAM_WAITS
        and any(f.file.endswith("/subprocess.py") for f in stack.frames)
    )


def in_comprehension(history: History, frame: r.Frame) -> bool:
    """True if a frame of the program's own is a comprehension, or at a line that has one within."""
    line = line_of(history, frame)
    return short_name(frame.function) in COMPREHENSIONS or (line is not None and bool(_INLINED.search(line.text)))


def fetches(stack: r.Stack) -> bool:
    """True if a stack is below a DataLoader's fetch, or its collate function."""
    return not tags(stack).isdisjoint(LOADER)


# Exchanges by mpi4py, which is compiled: a call into it has no frame of its own, so only the text of the program's line shows it.

EXCHANGES = MPI_COLLECTIVES | MPI_POINT_TO_POINT
# What mpirun and its like leave in a rank's environment: Open MPI, MVAPICH, MPICH's hydra and Slurm's PMI-2, PMIx.
STARTED_BY_MPI = ("OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
# ``comm``, ``self.world``, ``MPI.COMM_WORLD``, ``subcomm``, ``row_comm``; ``req`` and ``requests`` of what was begun before.
_RECEIVER = re.compile(r"(?:^|_)(?:\w*comm|world|communicator|mpi|reqs?|requests?)(?:_|$)", re.IGNORECASE)


def mpi_calls(line: r.SourceLine, job: Job) -> frozenset[str]:
    """The methods of a communicator or a request that a line calls, by name.

    A name that much else has as well (``send``, ``wait``) counts only on what is called as these are, in a job of MPI.
    """
    parts = [call.rpartition(".") for call in line.calls]
    plain = {name for _, _, name in parts if name in EXCHANGES}
    common = {name for owner, _, name in parts if name in MPI_COMMON and _RECEIVER.search(owner.rpartition(".")[2])}
    return frozenset(plain | common if common and _is_of_mpi(job) else plain)


def waits_for_ranks(history: History, job: Job, stack: r.Stack) -> bool:
    """True if a rank of a job of MPI is at a line of its own that is an exchange with other ranks."""
    line = calling_line(history, stack) if _is_of_mpi(job) else None
    return line is not None and bool(mpi_calls(line, job))


def _is_of_mpi(job: Job) -> bool:
    """True if mpirun or the like started several ranks; a single one exchanges with none."""
    return has_several(job) and all(
        any(name in rank.process.environment for name in STARTED_BY_MPI) for rank in job.ranks
    )


def has_several(job: Job) -> bool:
    """True if the job has several ranks, seen or not."""
    return max(len(job.ranks), job.world_size or 1) > 1
