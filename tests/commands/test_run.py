"""The options of ``run``, ``attach`` and ``daemon``: typed, from the environment and from configuration files."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perfwatch.cli import app
from perfwatch.errors import UsageError
from perfwatch.settings import LARGEST_BYTES, SETTABLE
from tests.command_line import perfwatch

pytestmark = pytest.mark.live


def options(command: str, *words: str) -> dict[str, Any]:
    """What a command is given."""
    context = app.make_context("perfwatch", [command])
    found = app.get_command(context, command)
    assert found is not None
    return found.make_context(command, list(words), parent=context).params


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own configuration file, which is not there yet; nothing else is set."""
    for name in [name for name in os.environ if name.startswith("PERFWATCH_")]:
        monkeypatch.delenv(name)
    path = tmp_path / "config.toml"
    monkeypatch.setenv("PERFWATCH_CONFIG", str(path))
    path.write_text("")
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("command", SETTABLE)
def test_every_option_has_a_variable(command: str, config: Path) -> None:
    """Named after it; ``--notify`` and ``--heartbeat`` have ones that no job inherits, read elsewhere."""
    context = app.make_context("perfwatch", [command])
    found = app.get_command(context, command)
    assert found is not None
    for param in found.params:
        if getattr(param, "setting", False) and param.name not in ("notify", "heartbeat"):
            long = next(name for name in param.opts if name.startswith("--"))
            assert f"PERFWATCH_{long[2:].replace('-', '_').upper()}" in (param.envvar or ())


@pytest.mark.parametrize(
    ("typed", "seconds"),
    [("90", 90.0), ("90s", 90.0), ("5m", 300.0), ("1h30m", 5400.0), ("2500ms", 2.5), ("1.5 min", 90.0)],
)
def test_a_time_is_read_as_people_write_it(typed: str, seconds: float) -> None:
    """Seconds where no unit is given."""
    assert options("run", "--hang-timeout", typed, "--", "true")["patience"] == seconds
    assert options("run", "--patience", typed, "--", "true")["patience"] == seconds


@pytest.mark.parametrize(("typed", "number"), [("8e9", 8e9), ("8b", 8e9), ("8B", 8e9), ("1_000", 1e3), ("1.5k", 1.5e3)])
def test_a_large_number_is_read_as_people_write_it(typed: str, number: float) -> None:
    """Of parameters and tokens."""
    assert options("run", "--params", typed, "--", "true")["params"] == number


@pytest.mark.parametrize("words", [("--params", "1e999"), ("--hang-timeout", "9" * 400)])
def test_a_number_beyond_all_measure_is_refused(words: tuple[str, str]) -> None:
    """It would be infinite, and no MFU or timeout is."""
    with pytest.raises(UsageError, match="too large"):
        options("run", *words, "--", "true")


def test_what_is_typed_goes_before_the_environment_and_that_before_the_file(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a table for one command before what stands above the tables."""
    config.write_text('hang_timeout = "2m"\nquiet = true\n[run]\nhang_timeout = "3m"\narm = "none"\n')
    assert options("attach")["patience"] == 120.0
    read = options("run", "--", "true")
    assert (read["patience"], read["quiet"], read["arm"]) == (180.0, True, "none")

    monkeypatch.setenv("PERFWATCH_HANG_TIMEOUT", "4m")
    assert options("run", "--", "true")["patience"] == 240.0
    assert options("run", "-t", "5m", "--", "true")["patience"] == 300.0


@pytest.mark.parametrize(
    ("text", "says", "advises"),
    [
        ("hang_timeot = 1", "there is no option hang_timeot", "did you mean hang_timeout?"),
        ("[runn]\narm = 'none'", "there is no table [runn]", "did you mean run?"),
        ("hang_timeout = 'soon'", "hang_timeout: soon: not a time", "90s"),
        ("watch = 3", "watch: 3 is neither true nor false", "watch = true"),
        ("watch = ", "invalid value", "perfwatch doctor"),
        ("notify = 'https://h/secret'", "every user can read this file", "@"),
    ],
)
def test_a_mistake_in_a_file_is_told_with_the_file(config: Path, text: str, says: str, advises: str) -> None:
    """And what to write instead."""
    config.write_text(text)
    config.chmod(0o644)
    with pytest.raises(UsageError) as told:
        options("attach")

    assert str(config) in told.value.message
    assert says in told.value.message
    assert advises in told.value.advice


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_file_that_others_can_write_is_refused(config: Path, mode: int) -> None:
    """They could send the webhook elsewhere."""
    config.chmod(mode)
    with pytest.raises(UsageError, match="other users can write"):
        options("daemon")


def test_a_file_in_a_folder_that_others_can_write_is_refused(config: Path) -> None:
    """They could put another one in its place."""
    config.parent.chmod(0o777)
    with pytest.raises(UsageError, match="other users can write"):
        options("daemon")


def test_a_link_is_refused_where_others_can_write_beside_it_or_its_file(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the folder is named that this is about."""
    for name in ("links", "files"):
        (tmp_path / name).mkdir(mode=0o700)
    link = tmp_path / "links" / "config.toml"
    link.symlink_to(config.rename(tmp_path / "files" / "config.toml"))
    monkeypatch.setenv("PERFWATCH_CONFIG", str(link))
    assert options("daemon")
    for folder in (link.parent, tmp_path / "files"):
        folder.chmod(0o777)
        with pytest.raises(UsageError) as told:
            options("daemon")
        folder.chmod(0o700)

        assert told.value.advice == f"chmod go-w {folder}"


def test_a_file_that_is_too_large_is_refused(config: Path) -> None:
    """A part of it would be read, and a number may have been cut short."""
    config.write_text("#" * (LARGEST_BYTES - 16) + "\nhang_timeout = 500\n")
    with pytest.raises(UsageError, match="larger than 64 KiB"):
        options("run", "--config", str(config), "--", "true")


def test_a_mistake_of_the_machine_does_not_keep_a_job_from_starting(tmp_path: Path) -> None:
    """Here in the user's file, that is not named on the command line."""
    folder = tmp_path / ".config" / "perfwatch"
    folder.mkdir(parents=True, mode=0o700)
    (folder / "config.toml").write_text("hang_timeot = 1\n")
    (folder / "config.toml").chmod(0o600)
    environment = {**os.environ, "PERFWATCH_DIR": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / ".config")}
    environment.pop("PERFWATCH_CONFIG", None)
    if os.geteuid() == 0:  # whose own folder is that of the password file
        environment["PERFWATCH_CONFIG"] = str(folder / "config.toml")
    words = (sys.executable, "-m", "perfwatch", "run", "--", "sh", "-c", "exit 6")
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)

    assert (done.returncode, "it is ignored" in done.stderr) == (6, True)


def test_command_without_the_double_dash_runs_too(tmp_path: Path) -> None:
    """``perfwatch run true`` is unambiguous."""
    done = subprocess.run(
        [sys.executable, "-m", "perfwatch", "run", "-q", "sh", "-c", "exit 6"], env={"PERFWATCH_DIR": str(tmp_path)}
    )

    assert done.returncode == 6


@pytest.mark.parametrize(
    ("words", "code", "says", "advises"),
    [
        (("train.py",), 127, "train.py is not a program", "perfwatch run -- python train.py"),
        (("./train.py", "--lr", "1"), 126, "./train.py is not a program", "perfwatch run -- python ./train.py --lr 1"),
        (("nosuchprogram",), 127, "nosuchprogram: command not found", ""),
        (("/no/such/program",), 127, "/no/such/program: No such file or directory", ""),
    ],
)
def test_what_cannot_be_started_says_what_to_type(
    tmp_path: Path, words: tuple[str, ...], code: int, says: str, advises: str
) -> None:
    """A script that is no program, a name that is not on PATH."""
    (tmp_path / "train.py").write_text("print()\n")
    done = subprocess.run(
        [sys.executable, "-m", "perfwatch", "run", "--", *words],
        env={**os.environ, "PERFWATCH_DIR": str(tmp_path)}, cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip

    assert done.returncode == code
    assert says in done.stderr
    assert advises in done.stderr


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
