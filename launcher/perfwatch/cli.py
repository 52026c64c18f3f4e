"""The command line: assembles ``COMMANDS`` and turns every error into a sentence, its advice and an exit code."""

import errno
import os
import resource
import sys
import traceback
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Annotated, NoReturn, TextIO

import typer

from perfwatch import __version__
from perfwatch.commands import COMMANDS
from perfwatch.errors import INTERRUPTED, OutputUnwritable, PerfwatchError, PermissionDenied
from perfwatch.text import clean

BROKEN_PIPE = 141  # 128 + SIGPIPE: whoever read our output has closed it, as ``| head`` does
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
OWNER_ADVICE = (
    "run perfwatch as the user whom that belongs to, or with sudo, or ask for a bundle: perfwatch bundle SESSION"
)

app = typer.Typer(
    name="perfwatch",
    rich_markup_mode=None,  # importing rich for the help alone costs 100 ms
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(
    epilog="\b\nStart here:\n  perfwatch run -- python train.py    watch a run from its start\n"
    "  perfwatch ps                        find a run that is stuck now\n"
    "  perfwatch attach PID                say why it is stuck"
)
def perfwatch(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, help="Show the version and exit.", callback=lambda on: _version(on)),
    ] = False,
) -> None:
    """Why is this training run not making progress, or making it slowly, and who is to blame?

    Starts a run or looks at one that runs already; the training code is not changed and the job is never stopped.
    """


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"perfwatch {__version__}")
        raise typer.Exit


for _module in COMMANDS:
    _name = _module.__name__.rpartition(".")[2]
    app.command(_name, context_settings=getattr(_module, "CONTEXT_SETTINGS", None))(getattr(_module, _name))


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit: the only place where errors are caught.

    Args:
        arguments: the words after ``perfwatch``; those of this process by default.
    """
    stdout = sys.stdout
    if isinstance(stdout, TextIOWrapper) and stdout.errors == "strict":
        # A job's name in letters that this terminal or locale has not must not cost the verdict, nor its exit code.
        stdout.reconfigure(errors="replace")
    failed: Exception | None = None
    try:
        code = app(args=arguments, prog_name="perfwatch", standalone_mode=True)
    except SystemExit as end:  # how typer ends, well or with a usage error
        # It meets a closed pipe with exit code 1 and another stdout: 1 is for errors of ours.
        code = end.code if sys.stdout is stdout else BROKEN_PIPE
    except PerfwatchError as error:
        code = error.exit_code
        _say(error.message, error.advice)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        code = BROKEN_PIPE
    except Exception as error:
        failed = error
        code = PerfwatchError.exit_code
    refused = _refused(stdout, failed)
    if isinstance(refused, BrokenPipeError):
        code = BROKEN_PIPE
    elif refused is not None:
        code = OutputUnwritable.exit_code
        _say(f"stdout takes nothing: {refused.strerror}", "send it to a place that does, or make room")
    elif isinstance(failed, PermissionError) and failed.filename is not None:
        code = PermissionDenied.exit_code
        _say(f"{failed.filename}: {failed.strerror}", OWNER_ADVICE)
    elif failed is not None:
        _say(*_internal(failed))
    sys.exit(code)


def _say(message: str, advice: str) -> None:
    """What happened and what to do, on stderr: stdout stays empty for whoever parses it."""
    print(f"perfwatch: {clean(message)}", file=sys.stderr)
    for line in advice.splitlines():
        print(f"  {clean(line)}", file=sys.stderr)


def _internal(error: Exception) -> tuple[str, str]:
    if os.environ.get("PERFWATCH_TRACEBACK"):
        traceback.print_exception(error)
    if isinstance(error, OSError) and error.errno == errno.EMFILE:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return f"the limit on open files is too low: {limit}", "raise it, if need be as root: ulimit -n 1024"
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
