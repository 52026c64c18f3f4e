"""The program waits for input from a person.

What it means
    A ``breakpoint()``, ``pdb`` or ``input()`` was left in the code and reads from a terminal.

How it is recognised
    The wait chain ends in a read from a terminal, or in the debugger's own frames while the thread sleeps.

What it is mistaken for
    A terminal that a helper thread reads for a key: that thread is not on the training thread's chain.

What to do next
    Type at the prompt (``c`` and Enter in pdb), or take the breakpoint out; ``PYTHONBREAKPOINT=0`` disables them all.
"""

from perfwatch.triage.case import Case
from perfwatch.triage.hang import hung, who
from perfwatch.triage.patience import DECISIVE_SECONDS
from perfwatch.triage.rule import Cause
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
            summary=f"{who(chain)} waits for somebody to type{' at the debugger prompt' if debugger else ''}",
            patience=DECISIVE_SECONDS,
            alternatives=(Alternative(cause="blocked_pipe", refuted_by="what it reads is a terminal, not a pipe"),),
            next=(
                "type at the job's terminal (c, Enter continues in pdb)",
                "PYTHONBREAKPOINT=0 disables every breakpoint()",
            ),
        )
    return None
