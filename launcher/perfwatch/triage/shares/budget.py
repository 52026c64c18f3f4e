"""The time budget of a training thread: each sample counts once, in the first bin that holds it, so that the shares sum to one."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial

from perfwatch.triage.case import Case
from perfwatch.triage.history import History
from perfwatch.triage.roles.job import Member
from perfwatch.triage.shares.data import awaits_data
from perfwatch.triage.shares.own_work import own_work, prepares, rests, takes_a_lock
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.shares.python import hook_of
from perfwatch.triage.shares.thresholds import LATELY_SECONDS
from perfwatch.triage.shares.training import without_gradients_at
from perfwatch.triage.words.frames import any_tag, of_tensors, tags
from perfwatch_probes.readings import Stack


class Bin(Enum):
    """What a sample of the training thread is counted as."""

    DATA = "waits for data"
    SETUP = "starts or stops a loader, imports, compiles"
    SAVING = "saves or copies the model"
    LOCK = "waits for a lock"
    BATCHES = "makes batches"
    HOOKS = "is in a hook that torch calls"
    NO_GRADIENTS = "runs the model without gradients"
    PYTHON = "is in Python of a forward pass"
    SLEEP = "sleeps"
    OTHER = "does other work"
    TRAINING = "trains"


@dataclass(frozen=True)
class Budget:
    """The samples of one thread over a while, and the bin of each."""

    seen: Profile
    bins: tuple[Bin, ...]

    def of(self, *wanted: Bin) -> Profile:
        """The samples in these bins."""
        sights = zip(self.seen.sights, self.bins, strict=True)
        return Profile(tuple(one for one, found in sights if found in wanted), self.seen.seconds)

    def share(self, *wanted: Bin) -> float:
        """Share of the samples in these bins; 0 without samples."""
        return self.of(*wanted).samples / self.seen.samples if self.seen.samples else 0.0


def budget(case: Case, rank: Member, seconds: float = LATELY_SECONDS) -> Budget:
    """Where the time of a rank's training thread goes."""
    seen = case.profile(rank, seconds)
    return case.history.once(
        ("budget", rank.pid, seconds),
        lambda: Budget(seen, tuple(bin_of(case.history, one.reading) for one in seen.sights)),
    )


def bin_of(history: History, stack: Stack) -> Bin:
    """The bin of a sample."""
    return next((one for one, holds in _BINS if holds(history, stack)), Bin.TRAINING)


def in_own_forward(stack: Stack) -> bool:
    """True if a forward pass is in the program's own code, or in a library that is not written in torch's operations."""
    return bool(stack.frames) and not of_tensors(stack.frames[0]) and "forward" in tags(stack)


def _tagged(wanted: tuple[str, ...], _: History, stack: Stack) -> bool:
    return any_tag(tags(stack), *wanted)


_BINS: tuple[tuple[Bin, Callable[[History, Stack], bool]], ...] = (
    (Bin.DATA, lambda _, stack: awaits_data(stack)),
    (Bin.SETUP, partial(_tagged, ("loader_start", "loader_stop", "import", "compile"))),
    (Bin.SAVING, partial(_tagged, ("save", "model_copy"))),
    (Bin.LOCK, takes_a_lock),
    (Bin.BATCHES, lambda _, stack: prepares(stack)),
    (Bin.HOOKS, lambda _, stack: hook_of(stack) is not None),
    (Bin.NO_GRADIENTS, lambda history, stack: without_gradients_at(history, stack) is not None),
    (Bin.PYTHON, lambda _, stack: in_own_forward(stack)),
    (Bin.SLEEP, lambda history, stack: own_work(stack) and rests(history, stack)),
    (Bin.OTHER, lambda _, stack: own_work(stack)),
)
