"""Options that are set elsewhere than on the command line: configuration files, for ``run``, ``attach`` and ``daemon``.

::

    hang_timeout = "5m"            # /etc/perfwatch/config.toml, or ~/.config/perfwatch/config.toml
    [daemon]
    metrics_port = 9123
    [sessions]
    keep_days = 30                 # of calm recordings; keep_gib of all together

The command line goes before the environment, the environment before the user's file, and that one before the machine's. A
table is for one command, what stands above the tables for each that has the option. ``--config FILE`` or ``$PERFWATCH_CONFIG``
is read instead of both files.

A file that another user can write is refused: it could send a webhook, or root's recordings, elsewhere.
"""

import os
import pwd
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from perfwatch.errors import PerfwatchError, UsageError
from perfwatch.options import OPTIONS, APath, ClickOption, Kind, Option, nearest

Note = Callable[[str], object]

VARIABLE = "PERFWATCH_CONFIG"
NOTES = "perfwatch.settings"  # in the context of a command
MACHINE = Path("/etc/perfwatch/config.toml")
SETTABLE = ("run", "attach", "daemon")  # each option of these has an environment variable and may stand in a file
SESSIONS = "sessions"  # the table of what recordings may take
LIMITS = {"keep_days": "days", "keep_gib": "gib"}
LARGEST_BYTES = 64 * 2**10
DEADLINE_SECONDS = 1.0  # the user's home may lie on a server that is gone
ADVICE = "perfwatch doctor shows which configuration files are read"


@dataclass(frozen=True)
class ConfigFile:
    """A configuration file: its tables by command, "" for what stands above them, and True if every user can read it."""

    path: Path
    tables: Mapping[str, Mapping[str, object]]
    public: bool = False

    def values(self, command: str) -> dict[str, object]:
        """What it sets for a command, by the names of options with underscores."""
        return {name.replace("-", "_"): value
                for table in ("", command) for name, value in self.tables.get(table, {}).items()}  # fmt: skip


def candidates(environ: Mapping[str, str], machine: Path = MACHINE) -> list[tuple[Path, bool]]:
    """The files that are looked for, weakest first, and True for one that must be there."""
    if environ.get(VARIABLE):
        return [(Path(environ[VARIABLE]), True)]
    home = pwd.getpwuid(0).pw_dir if os.geteuid() == 0 else environ.get("HOME", "")  # sudo may keep the user's HOME
    folder = environ.get("XDG_CONFIG_HOME", "") if os.geteuid() else ""
    folder = folder if folder.startswith("/") else f"{home}/.config" if home else ""
    return [(machine, False), *([(Path(folder) / "perfwatch/config.toml", False)] if folder else [])]


def read(path: Path, required: bool = False) -> ConfigFile | None:
    """A configuration file; None where there is none.

    Raises:
        UsageError: it cannot be read, is no TOML, or others can write it.
    """
    from perfwatch_probes.deadline import KillableChild, NotStarted
    from perfwatch_probes.probe import Unavailable

    if path == MACHINE and not required and not os.path.lexists(path):
        return None  # on the machine's own disk: most have none, and a process for it would delay each job
    child = KillableChild()
    try:
        content, state, folders = child.call(_content, os.path.abspath(path), deadline_seconds=DEADLINE_SECONDS)
    except NotStarted as why:
        if required:
            raise UsageError(f"{path}: it cannot be read: {why.reason}", why.advice) from None
        return None
    except FileNotFoundError:
        if required:
            raise UsageError(f"{path}: no such file", ADVICE) from None
        return None
    except (OSError, Unavailable) as why:
        said = why.strerror if isinstance(why, OSError) else why.reason
        if isinstance(why, PermissionError | NotADirectoryError) and not required:
            return None  # not ours to read
        raise UsageError(f"{path}: it cannot be read: {said}", ADVICE) from None
    finally:
        child.end(DEADLINE_SECONDS)
    if len(content) > LARGEST_BYTES:  # its last line might be half of one
        raise UsageError(f"{path}: it is larger than {LARGEST_BYTES // 1024} KiB", ADVICE)
    for written in ((str(path), *state), *folders):
        _refuse_if_others_write(path, *written)
    return ConfigFile(path, _tables(path, content), bool(state[1] & 0o044))


def _content(path: str) -> tuple[bytes, tuple[int, int], list[tuple[str, int, int]]]:
    """Runs in the child: what is in the file; owner and mode of it, and of the folders in which it, and a link to it, lie."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    with os.fdopen(descriptor, "rb") as file:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise OSError(22, "not a regular file")
        folders = dict.fromkeys(os.path.dirname(one) for one in (path, os.path.realpath(path)))
        states = [(folder, os.stat(folder)) for folder in folders]
        return (
            file.read(LARGEST_BYTES + 1),
            (state.st_uid, state.st_mode),
            [(folder, one.st_uid, one.st_mode) for folder, one in states],
        )


def _refuse_if_others_write(path: Path, what: str, owner: int, mode: int) -> None:
    if owner not in (0, os.geteuid()):
        raise UsageError(f"{path}: it is not read, for {what} belongs to uid {owner}", f"chown {os.geteuid()} {what}")
    if mode & (stat.S_IWGRP | stat.S_IWOTH) and not (stat.S_ISDIR(mode) and mode & stat.S_ISVTX):
        raise UsageError(f"{path} is not read: other users can write to {what}", f"chmod go-w {what}")


def _tables(path: Path, content: bytes) -> dict[str, dict[str, object]]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        whole: dict[str, Any] = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as why:
        raise UsageError(f"{path}: {str(why)[:1].lower()}{str(why)[1:]}", ADVICE) from None
    above = {name: value for name, value in whole.items() if not isinstance(value, dict)}
    return {"": above, **{name: value for name, value in whole.items() if isinstance(value, dict)}}


def settings(
    command: click.Command, every: Mapping[str, click.Command], files: list[ConfigFile], note: Note | None = None
) -> dict[str, object]:
    """What the files set of a command's options, each value checked.

    Args:
        command: one of those that can be set.
        every: all of them, by name.
        files: weakest first.
        note: told what is wrong, which is then left out; None: it is raised.

    Raises:
        UsageError: an option that there is not, or a value that makes no sense.
    """
    found: dict[str, object] = {}
    for file in files:
        for trouble in [*_unknown(file, every), *_taken(file, command, found)]:
            if note is None:
                raise trouble
            note(f"{trouble.message}; it is ignored")
    return found


def _unknown(file: ConfigFile, commands: Mapping[str, click.Command]) -> Iterator[UsageError]:
    names: dict[str, Iterable[str]] = {one: _options(command) for one, command in commands.items()}
    every = {name for options in names.values() for name in options}
    names[SESSIONS] = LIMITS
    for table, values in file.tables.items():
        known = names.get(table, ()) if table else every
        if table and table not in names:
            yield UsageError(f"{file.path}: there is no table [{table}]", nearest(table, names) or ADVICE)
            continue
        for name in values:
            if name.replace("-", "_") not in known:
                where = f" in [{table}]" if table else ""
                yield UsageError(f"{file.path}: there is no option {name}{where}",
                                 nearest(name.replace("-", "_"), known) or ADVICE)  # fmt: skip


def _options(command: click.Command) -> dict[str, ClickOption]:
    """The options that can be set, by each of their names with underscores."""
    return {name.removeprefix("--").replace("-", "_"): param for param in command.params
            if isinstance(param, ClickOption) and param.setting for name in param.opts if name.startswith("--")}  # fmt: skip


def _taken(file: ConfigFile, command: click.Command, found: dict[str, object]) -> Iterator[UsageError]:
    known = _options(command)
    for name, value in file.values(command.name or "").items():
        option = known.get(name)
        if option is None:
            continue
        text = ",".join(map(str, value)) if isinstance(value, list) else value
        try:
            if option.name in ("notify", "heartbeat") and file.public and not str(text).startswith("@"):
                raise UsageError("a webhook's URL is a secret, and every user can read this file",
                                 f'put it in a file that only you can read: {option.name} = "@/path/of/that"')  # fmt: skip
            if option.is_flag and not isinstance(text, bool):
                raise UsageError(f"{text!r} is neither true nor false", f"{name} = true")
            if not option.is_flag:
                text = str(text)
                if isinstance(option.type, Kind):
                    option.type.convert(text, None, None)
        except PerfwatchError as why:
            yield UsageError(f"{file.path}: {name}: {why.message.removeprefix('perfwatch ')}", why.advice)
            continue
        found[option.name or ""] = text


def load(environ: Mapping[str, str], note: Note | None = None) -> list[ConfigFile]:
    """The files that there are, weakest first. Raises as ``read``; ``note`` is told instead, where there is one."""
    found = []
    for path, required in candidates(environ):
        try:
            file = read(path, required)
        except UsageError as why:
            if note is None:
                raise
            note(f"{why.message}; it is ignored")
            continue
        if file is not None:
            found.append(file)
    return found


def _apply(ctx: click.Context, param: click.Parameter, path: Path | None) -> None:
    """Before the other options are read: what the files say of them."""
    if ctx.resilient_parsing:
        return
    # A mistake of the machine's must not keep a job from starting.
    notes: list[str] | None = [] if ctx.command.name == "run" and path is None else None
    note = notes.append if notes is not None else None
    environ = {**os.environ, VARIABLE: str(path)} if path is not None else os.environ
    group = ctx.find_root().command
    every = (group.get_command(ctx, name) for name in SETTABLE) if isinstance(group, click.Group) else (ctx.command,)
    commands = {one.name or "": one for one in every if one is not None}
    try:
        ctx.default_map = settings(ctx.command, commands, load(environ, note), note)
    except Exception as error:  # no bug of ours must, and no lack of memory either
        if notes is None:
            raise
        notes.append(f"configuration files are ignored: {error}")
    ctx.meta[NOTES] = notes or []


def notes() -> list[str]:
    """What is wrong with the files, where the running command goes on without them."""
    ctx = click.get_current_context(silent=True)
    return list(ctx.meta.get(NOTES, ())) if ctx is not None else []


def session_limits(environ: Mapping[str, str]) -> dict[str, float]:
    """What the files say of the recordings that are kept; a file that cannot be read says nothing."""
    found: dict[str, float] = {}
    for path, _ in candidates(environ):
        try:
            file = read(path)
        except UsageError:
            continue
        values = file.tables.get(SESSIONS, {}) if file is not None else {}
        for name, limit in LIMITS.items():
            value = values.get(name, values.get(name.replace("_", "-")))
            if isinstance(value, int | float) and value >= 0:
                found[limit] = float(value)
    return found


CONFIG_OPTION = ClickOption(
    ["--config"],
    declared=Option("--config", panel=OPTIONS, setting=False),
    type=APath(),
    metavar="FILE",
    is_eager=True,
    expose_value=False,
    callback=_apply,
    help="Read this configuration file, instead of /etc/perfwatch/config.toml and the user's.",
)
