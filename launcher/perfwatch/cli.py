"""The command line: loads a command, and turns every error into a sentence, its advice and an exit code."""

import errno
import os
import resource
import sys
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from typing import NoReturn, TextIO

import click

from perfwatch import __version__
from perfwatch.commands import HIDDEN, SECTIONS, module_of
from perfwatch.errors import INTERRUPTED, OutputUnwritable, PerfwatchError, PermissionDenied
from perfwatch.options import Command, Exit, Group, command_of, in_our_words
from perfwatch.processes.reinvoke import as_typed_here
from perfwatch.settings import CONFIG_OPTION, SETTABLE
from perfwatch.text import clean

BROKEN_PIPE = 141  # 128 + SIGPIPE: the reader of our output has closed it, as ``| head`` does
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
OWNER_ADVICE = (
    "run perfwatch as the user whom that belongs to, or with sudo, or ask for a bundle: perfwatch bundle SESSION"
)
HELP = """Why does this training run make no progress, or slow progress, and what is the culprit?

Starts a run, or observes one that runs already. The training code is not changed and the job is never stopped.
"""
EPILOG = """\b
Start here:
  perfwatch run -- python train.py    watch a run from its start
  perfwatch ps                        find a run that is stuck now
  perfwatch attach                    why it is stuck
"""
SHELLS = ("bash", "zsh", "fish")
_HELP_NAMES = {"help_option_names": ["-h", "--help"], "max_content_width": 80}


def _load(name: str) -> Command:
    module = module_of(name)
    settings = name in SETTABLE
    prepared = (CONFIG_OPTION,) if settings else ()
    context = {**_HELP_NAMES, **getattr(module, "CONTEXT_SETTINGS", {})}
    made = command_of(getattr(module, name), settings=settings, prepared=prepared, context_settings=context)
    made.name = name
    return made


def _show_version(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        print(f"perfwatch {__version__}")
        ctx.exit()


def _show_completion(ctx: click.Context, param: click.Parameter, shell: str | None) -> None:
    """Print what the user's shell evaluates: it asks this program for the words."""
    if shell is None or ctx.resilient_parsing:
        return
    from click.shell_completion import get_completion_class

    script = get_completion_class(shell)
    assert script is not None
    print(script(app, {}, "perfwatch", "_PERFWATCH_COMPLETE").source())
    ctx.exit()


app = Group(
    "perfwatch",
    sections=SECTIONS,
    load=_load,
    hidden=HIDDEN,
    help=HELP,
    epilog=EPILOG,
    no_args_is_help=True,
    context_settings=_HELP_NAMES,
    params=[
        click.Option(["-V", "--version"], is_flag=True, is_eager=True, expose_value=False, callback=_show_version,
                     help="Show the version and exit."),
        click.Option(["--completion"], type=click.Choice(SHELLS), is_eager=True, expose_value=False,
                     callback=_show_completion, metavar="SHELL",
                     help='For bash: eval "$(perfwatch --completion bash)" in ~/.bashrc; also zsh, fish.'),
    ],
)  # fmt: skip


def command(function: Callable[..., object]) -> None:
    """Add a command, for as long as this process lives."""
    app.commands[function.__name__] = command_of(function, context_settings=_HELP_NAMES)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit: the only place where errors are caught.

    Args:
        arguments: the words after ``perfwatch``; those of this process by default.
    """
    stdout = sys.stdout
    words = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(stdout, TextIOWrapper) and stdout.errors == "strict":
        # A job's name in letters that this terminal or locale has not must not cost the verdict, nor its exit code.
        stdout.reconfigure(errors="replace")
    failed: Exception | None = None
    said: PerfwatchError | None = None
    try:
        code = _run(words)
    except SystemExit as end:  # help within help
        code = end.code if isinstance(end.code, int) else 0
    except PerfwatchError as error:
        said = error
    except (KeyboardInterrupt, click.Abort):
        code = INTERRUPTED
    except BrokenPipeError:
        code = BROKEN_PIPE
    except Exception as error:
        failed = error
    refused = _refused(stdout, failed)
    if isinstance(refused, BrokenPipeError):
        code, said, failed = BROKEN_PIPE, None, None
    elif refused is not None:
        said = OutputUnwritable(f"cannot write to stdout: {refused.strerror}", "free some space, or write elsewhere")
    elif isinstance(failed, PermissionError) and failed.filename is not None:
        said = PermissionDenied(f"{failed.filename}: {failed.strerror}", OWNER_ADVICE)
    elif failed is not None:
        said = PerfwatchError(*_internal(failed))
    if said is not None:
        code = said.exit_code
        said.advice = as_typed_here(said.advice)
        _say(said.message, said.advice)
        if refused is None and _wants_json(words):
            _say_as_json(said, stdout)
    sys.exit(code)


def _run(words: list[str]) -> int:
    """Run a command; its exit code. Raises what goes wrong, in our words."""
    app._main_shell_completion({}, "perfwatch", "_PERFWATCH_COMPLETE")
    try:
        with app.make_context("perfwatch", words) as context:
            app.invoke(context)
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.ctx.get_help() if error.ctx is not None else "")
        return 2
    except click.UsageError as error:
        raise in_our_words(error) from None
    except Exit as end:
        return end.exit_code
    return 0


def _wants_json(words: Sequence[str]) -> bool:
    own = words[: words.index("--")] if "--" in words else words
    return "--json" in own


def _say(message: str, advice: str) -> None:
    """What happened and what to do, on stderr: stdout stays empty for programs that parse it."""
    print(f"perfwatch: {clean(message)}", file=sys.stderr)
    for line in advice.splitlines():
        print(f"  {clean(line)}", file=sys.stderr)


def _say_as_json(error: PerfwatchError, stdout: TextIO) -> None:
    """The same for a program, which reads stdout."""
    import json

    told = {"code": error.exit_code, "kind": type(error).__name__, "message": error.message, "advice": error.advice}
    try:
        print(json.dumps({"error": told}), file=stdout, flush=True)
    except OSError:
        _refused(stdout, None)


def _internal(error: Exception) -> tuple[str, str]:
    if isinstance(error, OSError) and error.errno == errno.EMFILE:  # nothing can be imported either
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return f"the limit on open files is too low: {limit}", "raise it, if need be as root: ulimit -n 1024"
    import traceback

    if os.environ.get("PERFWATCH_TRACEBACK"):
        traceback.print_exception(error)
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{last.name}, {os.path.basename(last.filename)}:{last.lineno}"
    return (
        f"internal error: {type(error).__name__}: {error} (in {where})",
        "this is a bug of perfwatch; the job is not touched. PERFWATCH_TRACEBACK=1 shows where it happened",
    )


def _refused(stdout: TextIO, failed: Exception | None) -> OSError | None:
    """Why stdout takes nothing: what is buffered is written now, not while the interpreter shuts down.

    failed: what ended the command; an unbuffered stdout does not keep what it could not write.
    """
    try:
        stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stdout.fileno())
        return error
    return failed if isinstance(failed, OSError) and failed.filename is None and failed.errno in FULL else None
