"""``perfwatch drill``: the options, and which of three things to do. ``perfwatch.gauntlet`` does them."""

import sys
from pathlib import Path
from typing import Annotated

from perfwatch.options import Argument, Exit, Json, Option, Seconds


def _drills(incomplete: str) -> list[str]:
    from perfwatch.drills import DRILLS

    return [one.name for one in DRILLS if one.name.startswith(incomplete)]


def drill(
    name: Annotated[
        str | None, Argument("[NAME]", help="A drill or a cause; without it, list them all.", complete=_drills)
    ] = None,
    every: Annotated[bool, Option("--all", help="Run the gauntlet: every drill, at every strength.")] = False,
    only: Annotated[str, Option(metavar="NAMES", help="With --all: these drills or causes, separated by commas.")] = "",
    strength: Annotated[
        str, Option(metavar="WORDS", help="loud, quiet or masked; several separated by commas with --all.")
    ] = "",
    repeat: Annotated[int, Option(metavar="N", min=1, help="With --all: how many times each.")] = 1,
    jobs: Annotated[
        int, Option(metavar="N", min=1, help="With --all: how many at a time; times are fair only with 1.")
    ] = 1,
    late: Annotated[
        float, Option(metavar="TIME", kind=Seconds(0.0, 86400.0), help="Attach so many seconds after the fault began.")
    ] = 0.0,
    mode: Annotated[
        str, Option(metavar="attach|run", help="attach; or run, to start the drill under perfwatch.")
    ] = "attach",
    patience: Annotated[
        float | None,
        Option(
            "--hang-timeout",
            hidden_names=("--patience",),
            metavar="TIME",
            kind=Seconds(1.0),
            help="The one that perfwatch gets; its own default otherwise.",
        ),
    ] = None,
    python: Annotated[
        str, Option(metavar="PATH", help="The Python that has torch.", shown_default="")
    ] = sys.executable,
    output: Annotated[
        Path | None, Option("--output", "-o", metavar="DIR", help="Keep rows and sessions in this folder.")
    ] = None,
    resume: Annotated[bool, Option("--resume", help="With -o: leave out what is there already.")] = False,
    json: Json = False,
) -> None:
    """Try the diagnosis on real faulty programs.

    And on healthy ones that look faulty: is it right?

    Nothing of the machine is changed; every process that a drill starts is ended with it.

    \b
    Examples:
      perfwatch drill                                what can be tried
      perfwatch drill stuck_worker                   one program and its diagnosis
      perfwatch drill --all --repeat 5 -o results    the whole gauntlet, its score
      perfwatch drill --all --repeat 5 -o results --resume
    """
    from importlib.util import find_spec

    from perfwatch.errors import UsageError, install_command

    if find_spec("psutil") is None:
        raise UsageError("the drills need the psutil package, which is not installed", install_command("psutil>=5.9"))
    from perfwatch.gauntlet import choice, show

    of_all = {"--only": bool(only), "--repeat": repeat > 1, "--jobs": jobs > 1, "--resume": resume}
    if not every and (given := [option for option, used in of_all.items() if used]):
        raise UsageError(f"{given[0]} needs --all", f"perfwatch drill --all {given[0]} ...")
    if resume and output is None:
        raise UsageError("--resume leaves out what a folder holds already, and none is named", "add -o FOLDER")
    if name is None and not every:
        show.catalogue(json)
        return
    choice_made = choice.choose(_words(only) if every else _words(name or ""), _words(strength))
    with choice.conditions(output, python, mode, late, patience) as conditions:
        if every:
            keep = output is not None
            raise Exit(show.gauntlet(choice_made, conditions, repeat, jobs, resume, keep, json))
        raise Exit(show.one(choice_made, conditions, json))


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]
