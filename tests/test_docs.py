"""The documentation says what is there: a command that nobody can find does not exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from perfwatch.commands import COMMANDS
from perfwatch.errors import EXIT_CODES
from perfwatch.triage.rule import Rule
from perfwatch.triage.rules import RULES

NAMES = [command.__name__.rpartition(".")[2] for command in COMMANDS]


@pytest.fixture(scope="module")
def readme(repository: Path) -> str:
    """The text of README.md."""
    return (repository / "README.md").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_every_command_is_in_the_readme(readme: str, name: str) -> None:
    """As a user would type it."""
    assert re.search(rf"\bperfwatch {name}\b", readme)


@pytest.mark.parametrize("cause", [name for rule in RULES for name in (rule.CAUSE.name, *rule.CAUSE.also)])
def test_every_cause_is_in_the_readme(readme: str, cause: str) -> None:
    """The word of the verdict can be searched for."""
    assert f"`{cause}`" in readme


@pytest.mark.parametrize("rule", RULES, ids=[rule.CAUSE.name for rule in RULES])
def test_the_readme_says_of_a_cause_what_explain_says(readme: str, rule: Rule) -> None:
    """Its first sentence, but for the state, under whose heading it stands."""
    sentence = (rule.__doc__ or "").partition("\n\n")[0].removeprefix("Busy: ").removeprefix("Healthy: ")

    assert f"| `{rule.CAUSE.name}` | {sentence} |" in readme


@pytest.mark.parametrize("state", sorted(EXIT_CODES))
def test_every_exit_code_is_in_the_readme(readme: str, state: str) -> None:
    """Scripts rely on them."""
    assert re.search(rf"\b{EXIT_CODES[state]}\b", readme)


@pytest.mark.live
@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_help_with_examples(name: str) -> None:
    """``perfwatch COMMAND --help`` shows how it is typed."""
    shown = subprocess.run(
        [sys.executable, "-m", "perfwatch", name, "--help"], check=True, capture_output=True, text=True, timeout=60
    ).stdout

    assert f"  perfwatch {name}" in shown.partition("xample")[2]


def test_the_readme_names_only_files_that_are_there(repository: Path, readme: str) -> None:
    """Links and scripts in the text can be followed."""
    named = set(re.findall(r"\]\(((?!https?:)[^)#]+)\)", readme)) | set(re.findall(r"\bscripts/[\w.]+", readme))

    assert [name for name in named if not (repository / name).exists()] == []


def test_the_changelog_has_the_version(repository: Path) -> None:
    """What users see is written down."""
    assert "## Unreleased" in (repository / "CHANGELOG.md").read_text()
