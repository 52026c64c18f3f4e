"""A terminal that takes no more: Ctrl-S was typed there, or whoever shows it has stopped reading, and the next write blocks."""

from perfwatch.triage.case import Case
from perfwatch.triage.hang import hung, who
from perfwatch.triage.patience import STRUCTURAL_SECONDS
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.edges import STREAMS
from perfwatch.verdict import Alternative, Finding

HELD = "Ctrl-S was typed there, or whoever shows it (tmux, screen, ssh) has stopped"


def held(case: Case, chain: Chain) -> Finding | None:
    """On a chain whose end is blocked writing to a terminal."""
    terminal = chain.end.descriptor
    if terminal is None or terminal.kind != "tty":
        return None
    stream = f" ({STREAMS[terminal.fd]})" if terminal.fd in STREAMS else ""
    return hung(
        case,
        "blocked_pipe",
        chain,
        owner="user_code",
        summary=f"{who(chain)} writes to the terminal {terminal.target}{stream}, which takes no more: {HELD}",
        patience=STRUCTURAL_SECONDS,
        alternatives=(
            Alternative(cause="waiting_for_input", refuted_by="it writes to the terminal, and does not read it"),
        ),
        next=(
            "press Ctrl-Q in the job's terminal (in screen, leave copy mode with Esc)",
            "redirect the job's output to a file next time: no terminal can hold it up then",
        ),
    )
