"""What a drill is: one real program with one known behaviour, and the verdict that it must get.

The programs in ``programs/`` are run by path, under the Python that has torch, and import nothing of perfwatch but
``stage`` (their own folder is first on ``sys.path`` then). This module and the catalogues never import torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

STRENGTHS = ("loud", "quiet", "masked")


@dataclass(frozen=True)
class Culprit:
    """Whom the verdict must name: ``role`` is main, worker, rank, thread, child or peer; ``function`` the frame to blame."""

    role: str
    function: str | None = None
    rank: int | None = None


@dataclass(frozen=True)
class Drill:
    """One program, how to start it, and what perfwatch must (and must not) say about it.

    name: what the user types (``perfwatch drill NAME``); for a fault it is the cause's own name, possibly with a suffix.
    program: file name in ``programs/``.
    state, causes: the right state, and the set of causes accepted as right (the first is the best one).
    lookalike_of: for a benign or different program: the cause that must NOT be named.
    strengths: which of STRENGTHS the program takes (empty where strength means nothing; it then runs once as "loud").
    ranks: 1 = plain python; >= 2 = the program is started under torchrun with so many ranks.
    needs: what the machine must have ("root", "fuse", "cgroup_v1_cpu", "pty", ...); the gauntlet says what it skipped.
    culprit: whom to name, or None where nobody in particular is to blame.
    culprit_from_start: whom to name under ``run``, where who has watched from the start knows of another: one that is gone.
    ends: by strength, how the wait chain ends where that decides on another patience than the cause's own: "decisive",
        "structural", "temporal" (a nap, a network, a thread at work that may yet help).
    from_start: only who has watched it from its start can tell, so it is always started under ``run``.
    """

    name: str
    program: str
    summary: str
    state: str
    causes: tuple[str, ...]
    lookalike_of: str | None = None
    strengths: tuple[str, ...] = ()
    ranks: int = 1
    needs: tuple[str, ...] = ()
    culprit: Culprit | None = None
    arguments: tuple[str, ...] = ()
    from_start: bool = False
    culprit_from_start: Culprit | None = None
    ends: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def path(self) -> Path:
        """Where the program lies."""
        return Path(__file__).parent / "programs" / self.program
