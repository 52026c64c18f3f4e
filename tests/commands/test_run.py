"""The command line of ``run``: read without the library where it is plain, and then exactly as the library reads it."""

import subprocess
import sys
from pathlib import Path

import pytest
import typer

from perfwatch.__main__ import plain_run
from perfwatch.cli import app
from perfwatch.exporters.options import wanted
from perfwatch.run.request import Request
from tests.command_line import perfwatch

PLAIN = [
    ["--", "python", "train.py"],
    ["--", "python", "--", "-q", "--no-agent"],
    ["-q", "--no-agent", "--", "true"],
    ["--quiet", "--agent", "--", "true"],
    ["--no-agent", "--agent", "--", "true"],
    ["--session", "/tmp/x", "--patience", "5", "--trigger-signal", "rt", "--", "true"],
    ["--metrics-port", "9123", "--notify", "@{webhook}", "--", "true"],
    ["--metrics-port=[::]:0", "--notify=@{webhook}", "--", "true"],
    ["--arm", "ncu-attach", "--", "true"],
    ["--session=/tmp/x", "--patience=120", "--trigger-signal=all", "--", "true"],
]
UNUSUAL = [
    ["run"],
    ["run", "--help"],
    ["run", "--"],
    ["run", "true"],
    ["run", "--quite", "--", "true"],
    ["run", "--patience", "soon", "--", "true"],
    ["run", "--patience", "0", "--", "true"],
    ["run", "--trigger-signal", "usr", "--", "true"],
    ["run", "--session", "--", "true"],
    ["run", "--arm", "gdb", "--", "true"],
    ["run", "--arm", "ncu-attach", "--no-agent", "--", "true"],
    ["run", "--metrics-port", "http", "--", "true"],
    ["run", "--notify", "ftp://h", "--", "true"],
    ["run", "--notify", "https://h/x", "--", "true"],
    ["run", "--metrics-port", "0", "--metrics-command", "--", "true"],
    ["run", "--metrics-socket", "/x/y", "--", "true"],
    ["attach", "--", "1"],
    [],
]


def read_by_the_library(words: list[str]) -> Request:
    """The same request from typer's own reading."""
    command = typer.main.get_command(app).commands["run"]  # type: ignore[attr-defined]
    read = command.make_context("run", list(words)).params
    return Request(
        command=tuple(read["command"]),
        agent=read["agent"],
        quiet=read["quiet"],
        session=read["session"] and Path(read["session"]),
        patience_seconds=read["patience"],
        trigger_signals=read["trigger_signal"],
        outlets=wanted(metrics_port=read["metrics_port"], notify=read["notify"]),
        arm=read["arm"],
    )


@pytest.mark.parametrize("words", PLAIN, ids=" ".join)
def test_plain_line_is_read_as_the_library_reads_it(words: list[str], tmp_path: Path) -> None:
    """Both ways give the same request."""
    webhook = tmp_path / "webhook"
    webhook.write_text("https://h/x\n")
    words = [word.format(webhook=webhook) for word in words]
    assert plain_run(["run", *words]) == read_by_the_library(words)


@pytest.mark.parametrize("words", UNUSUAL, ids=" ".join)
def test_anything_else_is_left_to_the_library(words: list[str]) -> None:
    """Help, mistakes and other commands get their usual answers."""
    assert plain_run(words) is None


@pytest.mark.live
def test_command_without_the_double_dash_runs_too(tmp_path: Path) -> None:
    """``perfwatch run true`` is unambiguous."""
    done = subprocess.run(
        [sys.executable, "-m", "perfwatch", "run", "-q", "sh", "-c", "exit 6"], env={"PERFWATCH_DIR": str(tmp_path)}
    )

    assert done.returncode == 6


@pytest.mark.parametrize(
    "words",
    [
        ["run", "--"],
        ["run", "--trigger-signal", "usr", "--", "true"],
        ["run", "--arm", "ncu", "--no-agent", "--", "true"],
    ],
)
def test_senseless_line_is_a_usage_error(words: list[str]) -> None:
    """Exit code 2 and a sentence on stderr, nothing on stdout."""
    done = perfwatch(*words)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr != ""
