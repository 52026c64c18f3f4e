"""The catalogue of verdicts: one file per cause, listed in order of precedence (the first sure finding names the cause).

Gone before hung, hung before busy, busy before slow, slow before healthy; within a state the end of the wait chain comes
before what it causes.
"""

from perfwatch.triage.rule import Rule
from perfwatch.triage.rules import starved_by_transforms, stuck_worker

RULES: tuple[Rule, ...] = (
    stuck_worker,
    starved_by_transforms,
)
