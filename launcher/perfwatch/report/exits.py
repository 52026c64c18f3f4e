"""The exit code that tells a verdict to a script."""

from perfwatch.errors import EXIT_CODES
from perfwatch.verdict import Verdict


def exit_code(verdict: Verdict) -> int:
    """By state; ``gone`` splits by how the job ended. Documented in the README, stable within a major version."""
    if verdict.state == "gone":
        return EXIT_CODES["finished" if verdict.cause == "finished" else "crashed"]
    return EXIT_CODES[verdict.state]
