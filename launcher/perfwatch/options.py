"""What a command declares of its command line, and the reading of it: click, with our own words and kinds of value.

A command is one function. Its docstring is the help; its parameters are annotated with ``Option`` or ``Argument``::

    def ps(judge: Annotated[bool, Option("--judge", help="Judge each job, for 4 s.")] = False) -> None:

``command_of`` makes a click command of it. What is wrong with a line is raised as ``UsageError``: what was typed, why it
cannot be used, and what to type instead.
"""

import inspect
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin, get_type_hints

import click
from click.core import ParameterSource
from click.exceptions import Exit as Exit

from perfwatch.errors import UsageError

PREFIX = "PERFWATCH_"  # of the environment variable of an option
OPTIONS = "Options"  # the panel of what is not in another
WIDTH = 80
AS_NEAR = 0.1  # a second word that may be meant is as near as the first, up to this
_SECONDS = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)\s*", re.ASCII)
_NUMBER = re.compile(r"([+-]?(?:\d[\d_,]*(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?)\s*([kmbgt]?)", re.ASCII)


if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]  # click 8.5; before, it takes no type
else:
    _ParamType = click.ParamType


class Kind(_ParamType, ABC):
    """A kind of value: ``read`` returns it, or raises ValueError with what is wrong in words."""

    name = "value"
    example = ""  # of how it is written

    @abstractmethod
    def read(self, text: str) -> object:
        """The value that a text says."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """As click asks for it; a default is a value already."""
        if not isinstance(value, str):
            return value
        try:
            return self.read(value)
        except ValueError as why:
            raise UsageError(f"{_named(param, ctx)} {_quoted(value)}: {why}", self.advice(param, ctx)) from None

    def advice(self, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """What to type instead."""
        name = param.opts[0] if isinstance(param, click.Option) else ctx.command_path if ctx is not None else ""
        return f"for example: {name} {self.example}" if self.example else ""


@dataclass
class Number(Kind):
    """A number between two: ``35``, ``4e6``, ``8b``, ``1.5k``."""

    least: float | None = None
    most: float | None = None
    whole: bool = False
    likely: str = ""  # what most users would type

    def __post_init__(self) -> None:
        middle = max(self.least or 0, 1) if self.most is None else (self.most + (self.least or 0)) / 2
        self.example = self.likely or f"{middle:g}"

    def read(self, text: str) -> float | int:
        """Raises ValueError."""
        match = _NUMBER.fullmatch(text.strip().lower())
        if match is None:
            raise ValueError("not a number")
        value = self._bounded(float(match[1].replace("_", "").replace(",", "")) * _SCALES[match[2]])
        if self.whole and not value.is_integer():
            raise ValueError("not a whole number")
        return int(value) if self.whole else value

    def _bounded(self, value: float) -> float:
        if not math.isfinite(value):
            raise ValueError("too large")
        if self.least is not None and value < self.least:
            raise ValueError(f"it must be {self._shown(self.least)} or more")
        if self.most is not None and value > self.most:
            raise ValueError(f"it must be {self._shown(self.most)} or less")
        return value

    def _shown(self, value: float) -> str:
        return f"{value:,.10g}"


@dataclass
class Seconds(Number):
    """A time: ``90``, ``90s``, ``5m``, ``1h30m``, ``500ms``, ``7d``. bare: the unit of a number without one; "" for none."""

    bare: str = "s"

    def __post_init__(self) -> None:
        self.example = "90, 90s, 5m or 1h30m" if self.bare else "12h, 7d or 4w"

    def read(self, text: str) -> float:
        """Raises ValueError."""
        rest, total = text.strip().lower(), 0.0
        parts = list(_PART.finditer(rest))
        if not parts or "".join(part[0] for part in parts) != rest:
            raise ValueError("not a time")
        for part in parts:
            unit = part[2] or (self.bare if len(parts) == 1 else "")
            if unit not in _SECONDS:
                raise ValueError(f"no unit {part[2]!r}" if part[2] else "a unit is missing")
            total += float(part[1]) * _SECONDS[unit]
        return self._bounded(total)

    def _shown(self, value: float) -> str:
        return f"{value:g} s"


@dataclass
class OneOf(Kind):
    """One of some words."""

    words: tuple[str, ...] = ()

    def read(self, text: str) -> str:
        """Raises ValueError."""
        if text not in self.words:
            raise ValueError(f"not one of {', '.join(self.words)}")
        return text

    def __post_init__(self) -> None:
        self.example = self.words[0] if self.words else ""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """As click asks for it."""
        if isinstance(value, str) and value not in self.words and (meant := nearest(value, self.words)):
            raise UsageError(f"{_named(param, ctx)} {_quoted(value)}: not one of {', '.join(self.words)}", meant)
        return super().convert(value, param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        """Those that begin so."""
        from click.shell_completion import CompletionItem

        return [CompletionItem(word) for word in self.words if word.startswith(incomplete)]


class APath(Kind):
    """A path, which is not looked at."""

    def read(self, text: str) -> Path:
        """Raises ValueError."""
        if not text:
            raise ValueError("no path is empty")
        return Path(text)


@dataclass(frozen=True)
class Declared:
    """An option as a command declares it, see ``Option``."""

    names: tuple[str, ...]
    hidden_names: tuple[str, ...]
    metavar: str | None
    help: str
    kind: Kind | None
    panel: str
    hidden: bool
    setting: bool
    variable: bool
    shown_default: str | None


def Option(  # noqa: N802  # read as what it makes, in an annotation
    *names: str,
    hidden_names: tuple[str, ...] = (),
    metavar: str | None = None,
    help: str = "",
    kind: Kind | None = None,
    min: float | None = None,
    max: float | None = None,
    panel: str = OPTIONS,
    hidden: bool = False,
    setting: bool = True,
    variable: bool = True,
    shown_default: str | None = None,
) -> Declared:
    """Declare an option of a command.

    Args:
        names: how it is typed, as in ``"--watch", "-w"``; made of the parameter's name where there are none.
        hidden_names: older names that still work.
        metavar: what is typed after it.
        help: one sentence.
        kind: reads the value; made of the annotation where it is None.
        min: the least number.
        max: the highest number.
        panel: the heading of the help under which it stands.
        hidden: True if the help does not show it.
        setting: False if neither the environment nor a configuration file sets it.
        variable: False if the environment does not.
        shown_default: what the help says of the default; None: the default itself, "": nothing.
    """
    kind = kind or (Number(min, max) if min is not None or max is not None else None)
    return Declared(names, hidden_names, metavar, help, kind, panel, hidden, setting, variable, shown_default)


@dataclass(frozen=True)
class Argument:
    """Declares an argument of a command.

    complete: the words that the shell offers for the beginning of one. no_option: what some type before it, as of an option.
    """

    metavar: str
    help: str = ""
    kind: Kind | None = None
    complete: Callable[[str], Iterable[str]] | None = None
    no_option: tuple[str, ...] = ()


@dataclass(frozen=True)
class Together:
    """Declares the options of a function, which the command gets with what was typed for them: it calls it when it needs to.

    One annotation, ``Annotated[Callable[[], Made], Together(made_of)]``, is then all that several commands share of them.
    """

    function: Callable[..., object]


JSON = Option("--json", "-j", help="Print one JSON object and nothing else on stdout.")
Json = Annotated[bool, JSON]


class ClickOption(click.Option):
    """An option with its panel and older names, which the help does not show."""

    def __init__(self, *arguments: Any, declared: Declared, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.panel, self.setting = declared.panel, declared.setting
        self._shown = [name for name in self.opts if name not in declared.hidden_names]

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """As click writes it, short option first, without the older names."""
        whole, self.opts = self.opts, sorted(self._shown, key=len)
        try:
            return super().get_help_record(ctx)
        finally:
            self.opts = whole


class Command(click.Command):
    """A command whose help has panels, and whose errors are ours."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Arguments, then the options panel by panel."""
        panels: dict[str, list[tuple[str, str]]] = {}
        arguments = []
        for param in self.get_params(ctx):
            if isinstance(param, click.Argument):
                arguments.append((param.make_metavar(ctx), getattr(param, "help", "")))
            elif (record := param.get_help_record(ctx)) is not None:
                panels.setdefault(getattr(param, "panel", OPTIONS), []).append(record)
        own = panels.pop(OPTIONS, [])
        for title, records in [("Arguments", arguments), (OPTIONS, own), *panels.items()]:
            if any(help for _, help in records):
                with formatter.section(title):
                    formatter.write_dl(records, col_max=32)

    def format_arguments(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """They stand among the panels."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does; words that are too many are named."""
        ctx.allow_extra_args = True
        with _known_to(ctx):
            rest = super().parse_args(ctx, args)
        if rest and not ctx.resilient_parsing:
            takes = " ".join(self.collect_usage_pieces(ctx)[1:]) or "no arguments"
            raise UsageError(
                f"{ctx.info_name}: {_quoted(rest[0])} is one word too many: it takes {takes}", help_of(ctx)
            )
        return rest


@contextmanager
def _known_to(ctx: click.Context) -> Iterator[None]:
    """What the parser has against an option is of this context: the parser itself knows none."""
    try:
        yield
    except click.BadOptionUsage as error:
        error.ctx = error.ctx or ctx
        raise


class Group(click.Group):
    """The commands, loaded when they are asked for, in sections.

    Args:
        sections: headings, with the names of commands in their order.
        load: the function of a command by its name.
        hidden: those that the help does not list.
    """

    def __init__(
        self,
        *arguments: Any,
        sections: dict[str, tuple[str, ...]],
        load: Callable[[str], click.Command],
        hidden: tuple[str, ...] = (),
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self._sections, self._load, self._hidden = sections, load, hidden

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does; an option that lacks its value is named."""
        with _known_to(ctx):
            return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the help."""
        listed = (name for names in self._sections.values() for name in names)
        return list(dict.fromkeys([*listed, *self._hidden, *self.commands]))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, or None."""
        if cmd_name not in self.commands and cmd_name in self.list_commands(ctx):
            self.commands[cmd_name] = self._load(cmd_name)
        return self.commands.get(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does; a name that does not exist gets the nearest that does."""
        if args and self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing:
            meant = nearest(args[0], self.list_commands(ctx), "perfwatch ")
            raise UsageError(f"there is no command {_quoted(args[0])}", meant or "perfwatch --help lists them")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Section by section, each command with its first sentence, whole."""
        width = max(map(len, self.list_commands(ctx)))
        for title, names in self._sections.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), first_sentence(self.get_command(ctx, name))) for name in names])


def first_sentence(command: click.Command | None) -> str:
    """The first sentence of a command's help."""
    paragraph = (command.help or "").partition("\n\n")[0].replace("\n", " ") if command is not None else ""
    return f"{paragraph.partition('. ')[0].rstrip('.')}."


def command_of(
    function: Callable[..., object],
    *,
    settings: bool = False,
    prepared: Sequence[click.Parameter] = (),
    context_settings: dict[str, Any] | None = None,
) -> Command:
    """The click command of a function.

    Args:
        function: with annotated parameters.
        settings: True if each option may be set by an environment variable.
        prepared: parameters that the function does not get.
        context_settings: for the parser.
    """
    params: list[click.Parameter] = []
    groups: dict[str, tuple[Callable[..., object], list[str]]] = {}
    for name, param, hint in _declared(function):
        together = get_args(hint)[-1]
        if isinstance(together, Together):
            own = list(_declared(together.function))
            params += (_parameter(*one, settings) for one in own)
            groups[name] = together.function, [one[0] for one in own]
        else:
            params.append(_parameter(name, param, hint, settings))

    def called(**typed_in: Any) -> object:
        for name, (made_of, names) in groups.items():
            typed_in[name] = partial(made_of, **{one: typed_in.pop(one) for one in names})
        return function(**typed_in)

    return Command(
        function.__name__.rstrip("_"),
        callback=called,
        params=[*params, *prepared],
        help=inspect.getdoc(function),
        context_settings=context_settings,
    )


def _declared(function: Callable[..., object]) -> Iterator[tuple[str, inspect.Parameter, Any]]:
    hints = get_type_hints(function, include_extras=True)
    return ((name, param, hints[name]) for name, param in inspect.signature(function).parameters.items())


def _parameter(name: str, param: inspect.Parameter, hint: Any, settings: bool) -> click.Parameter:
    annotation, declared = get_args(hint)
    optional = get_origin(annotation) in (Union, UnionType)
    plain = next(one for one in get_args(annotation) if one is not NoneType) if optional else annotation
    many = get_origin(plain) is list
    kind = declared.kind or _kind(get_args(plain)[0] if many else plain)
    if plain is int and isinstance(kind, Number):
        kind.whole = True
        kind.__post_init__()
    missing = param.default is inspect.Parameter.empty
    default = {} if missing or (plain is bool and param.default is None) else {"default": param.default}
    if isinstance(declared, Argument):
        argument = click.Argument(
            [name],
            metavar=declared.metavar,
            type=kind,
            required=missing,
            nargs=-1 if many else 1,
            shell_complete=_completion(declared.complete),
            **default,
        )
        argument.help = declared.help
        argument.no_option = declared.no_option  # type: ignore[attr-defined]
        return argument
    names = declared.names or (f"--{name.replace('_', '-')}",)
    variables = [PREFIX + _setting(one) for one in (*names, *declared.hidden_names)
                 if one.startswith("--")]  # fmt: skip
    takes_value = plain is not bool
    return ClickOption(
        [*names, *declared.hidden_names, name],
        declared=declared,
        metavar=declared.metavar,
        type=kind if takes_value else click.BOOL,
        is_flag=not takes_value,
        help=f"{declared.help}{_shown_default(param.default, declared)}",
        hidden=declared.hidden,
        multiple=many,
        envvar=list(dict.fromkeys(variables)) if settings and declared.setting and declared.variable else None,
        show_default=False,
        **({} if many else default),
    )


def _setting(option: str) -> str:
    """``--metrics-port`` as a part of a variable's name: METRICS_PORT."""
    return option.partition("/")[0].removeprefix("--").replace("-", "_").upper()


def _shown_default(default: object, declared: Declared) -> str:
    """What the help says behind an option."""
    shown = declared.shown_default
    if shown is None:
        if isinstance(default, bool) or default in (None, "", inspect.Parameter.empty):
            return ""
        shown = f"{default:g}" if isinstance(default, float) else str(default)
        shown += "s" if isinstance(declared.kind, Seconds) and declared.kind.bare == "s" else ""
    return f"  [default: {shown}]" if shown else ""


def _kind(annotation: Any) -> _ParamType:
    if annotation is int:
        return Number(whole=True)
    if annotation is float:
        return Number()
    return APath() if annotation is Path else click.STRING


def _completion(complete: Callable[[str], Iterable[str]] | None) -> Callable[..., list[str]] | None:
    if complete is None:
        return None
    return lambda ctx, param, incomplete: list(complete(incomplete))


def typed(name: str) -> bool:
    """True if a parameter of the running command was typed, and not left to a setting or its default."""
    ctx = click.get_current_context(silent=True)
    return ctx is not None and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


def nearest(word: str, words: Iterable[str], before: str = "") -> str:
    """``did you mean attach?`` of what was mistyped; empty if nothing is near."""
    import difflib

    found = difflib.get_close_matches(word.lower(), list(words), n=2, cutoff=0.6)
    ratios = [difflib.SequenceMatcher(None, word.lower(), one).ratio() for one in found]
    near = [one for one, ratio in zip(found, ratios, strict=True) if ratio > ratios[0] - AS_NEAR]
    return f"did you mean {' or '.join(before + one for one in near)}?" if near else ""


def help_of(ctx: click.Context | None) -> str:
    """Where to read on."""
    return f"{ctx.command_path if ctx is not None else 'perfwatch'} --help"


def in_our_words(error: click.UsageError) -> UsageError:
    """What click has against a line, as our own error."""
    ctx = error.ctx
    within = ctx.info_name if ctx is not None and ctx.parent is not None else ""
    where, before = within or "perfwatch", f"{within}: " if within else ""
    if isinstance(error, click.NoSuchOption):
        params = ctx.command.get_params(ctx) if ctx is not None else []
        known = [name for one in params if isinstance(one, click.Option) and not one.hidden for name in one.opts]
        same = next((one for one in params if isinstance(one, click.Argument)
                     and error.option_name in getattr(one, "no_option", ())), None)  # fmt: skip
        long = [name for name in known if name.startswith("--")]
        meant = nearest(error.option_name, long)
        if same is not None and ctx is not None:
            meant = f"type it without {error.option_name}: {ctx.command_path} {same.make_metavar(ctx).strip('[]')}"
        return UsageError(f"{where} has no option {error.option_name}", meant or help_of(ctx))
    if isinstance(error, click.MissingParameter) and error.param is not None and ctx is not None:
        needed = error.param.make_metavar(ctx)
        return UsageError(f"{before}{needed} is missing", f"{ctx.get_usage().replace('Usage: ', '')}\n{help_of(ctx)}")
    if isinstance(error, click.BadOptionUsage):
        option = next((one for one in (ctx.command.get_params(ctx) if ctx is not None else [])
                       if error.option_name in (*one.opts, *one.secondary_opts)), None)  # fmt: skip
        if isinstance(option, click.Option) and ctx is not None and option.is_flag:
            return UsageError(f"{before}{error.option_name} takes no value", f"{ctx.command_path} {error.option_name}")
        metavar = option.make_metavar(ctx) if option is not None and ctx is not None else "VALUE"
        return UsageError(f"{before}{error.option_name} needs a value", f"{error.option_name} {metavar}")
    if isinstance(error, click.BadParameter):
        return UsageError(f"{_named(error.param, ctx)}: {error.message[:1].lower()}{error.message[1:].rstrip('.')}",
                          help_of(ctx))  # fmt: skip
    return UsageError(f"{before}{error.format_message()}", help_of(ctx))


def _named(param: click.Parameter | None, ctx: click.Context | None) -> str:
    """A parameter as the user knows it: the option, the variable, or what stands in the help."""
    if param is None or param.name is None:
        return "perfwatch"
    if ctx is None or isinstance(param, click.Argument):
        return str(ctx.info_name) if ctx is not None else param.name
    source = ctx.get_parameter_source(param.name)
    name = max(param.opts, key=len)
    if source is ParameterSource.ENVIRONMENT and isinstance(param.envvar, list):
        import os

        return next((f"${variable}" for variable in param.envvar if variable in os.environ), name)
    if source is ParameterSource.DEFAULT_MAP:
        return f"{_setting(name).lower()} in the configuration file"
    return name


def _quoted(text: str) -> str:
    import shlex

    return shlex.quote(text) if text else "''"
