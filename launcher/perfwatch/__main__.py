"""``perfwatch``, and ``python -m perfwatch``.

A plain ``perfwatch run [OPTIONS] -- COMMAND`` is read here, without the command line library: its import would cost the
job 0.15 s at start and every process of ours 10 MB for as long as the job runs. All else, also every mistake and
``--help``, is left to ``perfwatch.cli``; ``tests/commands/test_run.py`` holds the two against each other.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from perfwatch.processes.priority import KEEP_PRIORITY, give_way

if TYPE_CHECKING:
    from perfwatch.run.request import Request

_SWITCHES = {
    "--agent": ("agent", True),
    "--no-agent": ("agent", False),
    "--quiet": ("quiet", True),
    "-q": ("quiet", True),
}


def main() -> None:
    """Do what the command line of this process says; does not return."""
    try:
        own_libraries_first(sys.path, os.environ)
        if not KEEP_PRIORITY.intersection(sys.argv[1:2]):
            give_way(os.environ)
        _main()
    except KeyboardInterrupt:  # before ``perfwatch.cli`` could take it: its libraries take 0.1 s
        from perfwatch.errors import INTERRUPTED

        sys.exit(INTERRUPTED)


def own_libraries_first(path: list[str], environment: Mapping[str, str]) -> None:
    """Search the folders of PYTHONPATH last: they are for the job, and may hold our libraries in a version that we cannot use.

    Args:
        path: ``sys.path``, which is changed.
        environment: where PYTHONPATH is looked up.
    """
    named = set(filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)))
    with suppress(OSError):  # the working directory is gone
        named |= {os.path.abspath(folder) for folder in named}
    path.sort(key=named.__contains__)


def _main() -> None:
    from perfwatch.processes import linux  # imports take most of a short command's CPU, so they come after ``give_way``

    arguments = sys.argv[1:]
    # What ``run`` starts has its streams as we got them; any other program of ours finds each of them open.
    linux.occupy_standard_descriptors(inherited=arguments[:1] != ["run"])
    sys.stdout = sys.stdout or open(os.devnull, "w")  # closed from the start: python has none then
    sys.stderr = sys.stderr or open(os.devnull, "w")
    request = plain_run(arguments)
    if request is not None:
        from perfwatch.run.supervise import run  # the other commands do without

        run(request, os.environ)
    from perfwatch.cli import main as command_line

    command_line()


def plain_run(arguments: Sequence[str]) -> "Request | None":
    """The request, if this is a ``run`` line without anything unusual; otherwise None."""
    if arguments[:1] != ["run"] or "--" not in arguments:
        return None
    from dataclasses import replace
    from pathlib import Path

    from perfwatch.exporters.wanted import (
        NOTIFY_VARIABLE,
        MetricsWanted,
        Wanted,
        can_serve_metrics,
        parse_metrics,
        parse_url,
    )
    from perfwatch.run.request import ARMS, Request

    if NOTIFY_VARIABLE in os.environ:
        return None

    end = arguments.index("--")
    fields: dict[str, object] = {"command": tuple(arguments[end + 1 :])}
    outlets = Wanted()
    words = iter(arguments[1:end])
    for word in words:
        name, equals, value = word.partition("=")
        if word in _SWITCHES:
            field, fields_value = _SWITCHES[word]
            fields[field] = fields_value
            continue
        if not equals:
            value = next(words, "")
        if name == "--session" and value:
            fields["session"] = Path(value).absolute()
        elif name == "--patience" and value.isdecimal() and int(value) >= 1:
            fields["patience_seconds"] = float(value)
        elif (name == "--metrics-port" and value and can_serve_metrics()) or (
            name == "--notify" and value.startswith("@")
        ):
            try:
                outlets = (
                    replace(outlets, url=parse_url(value))
                    if name == "--notify"
                    else replace(outlets, metrics=MetricsWanted(*parse_metrics(value)))
                )
            except (ValueError, OSError):
                return None
        elif name == "--trigger-signal" and value in ("all", "rt"):
            fields["trigger_signals"] = value
        elif name == "--arm" and value in ARMS:
            fields["arm"] = value
        else:
            return None
    fields["outlets"] = outlets
    if str(fields.get("arm")).startswith("ncu") and fields.get("agent") is False:
        return None
    return Request(**fields) if fields["command"] else None  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
