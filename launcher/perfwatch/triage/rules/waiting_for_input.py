"""The program waits for input from a person."""

from perfwatch.triage.case import Case
from perfwatch.triage.hang import hung, who
from perfwatch.triage.patience import DECISIVE_SECONDS
from perfwatch.triage.rule import Cause, Rule
from perfwatch.verdict import Alternative, Outcome
from perfwatch_probes.readings import Stack, Thread

CAUSE = Cause("waiting_for_input", "hung", "user_code", (Thread, Stack))


def judge(case: Case) -> Outcome:
    """Fires on a chain that ends at a prompt."""
    for chain in case.still_chains:
        if chain.end.kind != "input":
            continue
        debugger = "debugger" in chain.end.node.tags
        return hung(
            case,
            CAUSE.name,
            chain,
            owner=CAUSE.owner,
            summary=f"{who(chain)} waits for input{' at the debugger prompt' if debugger else ' at a terminal'}",
            patience=DECISIVE_SECONDS,
            alternatives=(Alternative(cause="blocked_pipe", refuted_by="what it reads is a terminal, not a pipe"),),
            next=(
                "type at the job's terminal (c, Enter continues in pdb)",
                "PYTHONBREAKPOINT=0 disables every breakpoint()",
            ),
        )
    return None


RULES = (Rule(CAUSE, judge),)
