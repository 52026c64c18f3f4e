"""What a rule is: a cause, and one function from a case to an outcome.

``judge`` sees the case and nothing else: no clock, no file, no process. It returns a Finding when it recognises its cause, an
Abstention when it might apply but lacks a reading, and None when the cause is not there.
"""

from collections.abc import Callable
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Rule:
    """One cause and how it is recognised. ``explain/CAUSE.md`` says it to users."""

    cause: Cause
    judge: Callable[[Case], Outcome]
