"""Short forms that describe a hang, a slow run, and a healthy run that looks like one.

A fault has the name of its cause, with a suffix for a further way to cause it. A look-alike has the name of its file;
``lookalike_of`` is the verdict that would be wrong.
"""

from collections.abc import Mapping

from perfwatch.drills.drill import STRENGTHS, Culprit, Drill

LOUD_AND_MASKED = ("loud", "masked")


def slow(
    name: str,
    program: str,
    summary: str,
    culprit: Culprit | None = None,
    strengths: tuple[str, ...] = STRENGTHS,
    also: tuple[str, ...] = (),
    ranks: int = 1,
    needs: tuple[str, ...] = (),
    from_start: bool = False,
) -> Drill:
    """Describe a slow run; its cause is the part of ``name`` before a hyphen, ``also`` are right as well."""
    cause = name.split("-")[0]
    return Drill(
        name,
        f"{program}.py",
        summary,
        "slow",
        (cause, *also),
        None,
        strengths,
        ranks,
        needs,
        culprit,
        from_start=from_start,
    )


def hung(
    name: str,
    program: str,
    summary: str,
    culprit: Culprit,
    strengths: tuple[str, ...] = LOUD_AND_MASKED,
    also: tuple[str, ...] = (),
    ranks: int = 1,
    needs: tuple[str, ...] = (),
    culprit_from_start: Culprit | None = None,
    ends: Mapping[str, str] | None = None,
) -> Drill:
    """Describe a hang; its cause is the part of ``name`` before a hyphen, ``also`` are names that are right as well."""
    cause = name.split("-")[0]
    return Drill(
        name,
        f"{program}.py",
        summary,
        "hung",
        (cause, *also),
        strengths=strengths,
        ranks=ranks,
        needs=needs,
        culprit=culprit,
        culprit_from_start=culprit_from_start,
        ends=ends or {},
    )


def healthy(
    program: str,
    lookalike_of: str,
    summary: str,
    ranks: int = 1,
    needs: tuple[str, ...] = (),
    causes: tuple[str, ...] = ("cpu_training", "balanced"),
) -> Drill:
    """Describe a run with nothing to blame; it is called what its file is called."""
    return Drill(program, f"{program}.py", summary, "healthy", causes, lookalike_of, (), ranks, needs)
