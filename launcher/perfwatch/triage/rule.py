"""What a rule is: one file, one cause, one function from a case to an outcome.

A rule module has a docstring with fixed headings (``perfwatch explain`` prints it), a ``CAUSE`` and a ``judge``. It sees the
case and nothing else: no clock, no file, no process. It returns a Finding when it recognises its cause, an Abstention when
it might apply but lacks a witness, and None when the cause is not there.
"""

from dataclasses import dataclass
from typing import Protocol

from perfwatch.triage.case import Case
from perfwatch.verdict import Outcome
from perfwatch_probes.readings import Reading


@dataclass(frozen=True)
class Cause:
    """The word for it, the state it belongs to, who usually owns the fix, and the readings without which the rule abstains."""

    name: str
    state: str
    owner: str
    needs: tuple[type[Reading], ...]
    also: tuple[str, ...] = ()  # words of its own for forms of it, which a verdict may name


class Rule(Protocol):
    """A rule module, as the catalogue sees it."""

    __doc__: str | None
    CAUSE: Cause

    def judge(self, case: Case) -> Outcome:
        """Look at the case once."""
        ...
