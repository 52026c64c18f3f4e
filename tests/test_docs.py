"""The documentation says what is there: a command that nobody can find does not exist."""

import ast
import importlib
import inspect
import pkgutil
import re
import runpy
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import perfwatch
import perfwatch_probes
from perfwatch.commands import COMMANDS
from perfwatch.errors import EXIT_CODES
from perfwatch.exporters.families import families
from perfwatch.exporters.snapshot import NodeSnapshot
from perfwatch.report.explanation import sentence
from perfwatch.triage.rule import Rule
from perfwatch.triage.rules import RULES

NAMES = list(COMMANDS)
ROOT = Path(__file__).resolve().parent.parent
LARGEST_README_BYTES = 12 * 1024
MOST_MODULES_WITHOUT_README = 5
DESCRIBED_ABOVE = ("**/perfwatch/triage/*", "**/perfwatch/triage/*/*", "**/drills/programs")


# What no user reads anywhere, and what stands in its place. A word is added here when it has been replaced everywhere.
UNWANTED = {
    r"\b(some|no|any|every)body\b|\bwhoever\b": "the thing: no thread, rank 3, the lock holder",
    r"(?<![-`])\bpatience\b(?!\.py)": "hang timeout",
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\bcomes? about\b|\bcome of it\b|\bbrings? about\b": "completes; no result",
    r"\blets? (it|them) go on\b|\bbrings? it on\b|\bgo(es|ing)? on\b": "unblocks; continues, advances",
    r"\bturns on\b|\bin vain\b|\bfor ever\b": "keeps running; without a result; with no timeout",
    r"\btime to pass\b|\btime may heal\b": "sleeps for another ...; can clear up on its own",
    r"\bto blame\b|\brather than\b|\bhealthy would be\b|\balso seen\b": "culprit; ruled out; expected; matches as well",
    r"\blooking cost\b|\bblack box\b|\brules of now\b": "perfwatch used; flight data; the current version",
    r"\btoo short to be watched\b|\basked to leave\b": "exited before monitoring started; shutting down",
    r"\bwho (is|has|owns?|holds?|waits?|should)\b": "which process, the lock holder",
    r"\b(of|ten|few|more|many|between|two|the) looks\b|^ looks\b(?! wrong)|\blooks (were|was|later|ago)\b": "samples",
    r"\bpy-spy dump --nonblocking --pid\b": "perfwatch capture stacks PID, which is there",
}
NOT_FOR_USERS = {"programs"}  # of the drills


def pages() -> list[Path]:
    """Every Markdown file that git ships, or would."""
    command = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md")
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    return sorted(ROOT / name for name in set(listed) if name and (ROOT / name).is_file())


PAGES = pages()
PAGE_NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


def prose(page: Path) -> str:
    """The text of a page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The anchors of its headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.fixture(scope="module")
def readme(repository: Path) -> str:
    """The text of README.md."""
    return (repository / "README.md").read_text()


@pytest.fixture(scope="module")
def causes(repository: Path) -> str:
    """The text of the page that lists the causes; README.md links to it."""
    return (repository / "launcher" / "perfwatch" / "triage" / "README.md").read_text()


def test_the_readme_is_short(repository: Path) -> None:
    """One page, read in a few minutes; details go to the README of a folder, figures to tests/RESULTS.md."""
    assert (repository / "README.md").stat().st_size <= LARGEST_README_BYTES


def test_the_results_are_those_of_the_rows(repository: Path) -> None:
    """``scripts/results.py`` writes the page from tests/results.toml."""
    page = runpy.run_path(str(repository / "scripts" / "results.py"))["page"]

    assert page() == (repository / "tests" / "RESULTS.md").read_text()


@pytest.mark.parametrize("page", PAGES, ids=PAGE_NAMES)
def test_every_relative_link_resolves(page: Path) -> None:
    """To a file or folder in the repository, and to a heading in it."""
    broken = []
    for link in re.findall(r"\]\(((?!\w+:)[^)\s]+)\)", prose(page)):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        inside = target.exists() and target.is_relative_to(ROOT)
        if not inside or (anchor and anchor not in anchors(target)):
            broken.append(link)

    assert broken == []


def test_every_large_package_has_a_readme() -> None:
    """One screen: what is in it, where to start, a table of its modules."""
    modules = Counter(path.parent for root in ("launcher", "probes") for path in (ROOT / root).rglob("*.py"))
    large = {folder for folder, count in modules.items() if count > MOST_MODULES_WITHOUT_README}
    own = {folder for folder in large if not any(folder.match(pattern) for pattern in DESCRIBED_ABOVE)}

    assert [str(folder.relative_to(ROOT)) for folder in sorted(own) if folder / "README.md" not in PAGES] == []


@pytest.mark.parametrize("page", PAGES, ids=PAGE_NAMES)
def test_every_script_that_is_named_exists(page: Path) -> None:
    """In text and in blocks of code."""
    named = set(re.findall(r"(?<![\w./])scripts/[\w./-]*\w", page.read_text()))

    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=PAGE_NAMES)
def test_no_page_installs_the_package_of_that_name(page: Path) -> None:
    """On the index it is another project."""
    assert not re.search(r"(pip|pipx|uv tool|uv pip) install (-\S+ |--\S+ )*['\"]?perfwatch\b", page.read_text())


def test_the_readme_has_the_commands_for_test_and_demo(readme: str) -> None:
    """A fresh clone needs no more than these."""
    assert "`scripts/demo`" in readme
    assert re.search(r"^scripts/test\b", readme, flags=re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_every_command_is_in_the_readme(readme: str, name: str) -> None:
    """As a user would type it."""
    assert re.search(rf"\bperfwatch {name}\b", readme)


@pytest.mark.parametrize("cause", [name for rule in RULES for name in (rule.cause.name, *rule.cause.also)])
def test_every_cause_is_documented(causes: str, cause: str) -> None:
    """The word of the verdict can be searched for."""
    assert f"`{cause}`" in causes


@pytest.mark.parametrize("rule", RULES, ids=[rule.cause.name for rule in RULES])
def test_the_table_says_of_a_cause_what_explain_says(causes: str, rule: Rule) -> None:
    """Its first sentence, but for the state, under whose heading it stands."""
    said = sentence(rule.cause.name).removeprefix("Busy: ").removeprefix("Healthy: ")

    assert f"| `{rule.cause.name}` | {said} |" in causes


def test_the_readme_counts_the_causes(readme: str) -> None:
    """As many as the catalogue has."""
    count = sum(1 + len(rule.cause.also) for rule in RULES)

    assert f"[{count} causes](launcher/perfwatch/triage/README.md#causes)" in readme


def probe_names() -> Iterator[str]:
    """Every ``NAME`` of a probe: of a module or of a class in it."""
    for module in pkgutil.iter_modules(perfwatch_probes.__path__, "perfwatch_probes."):
        if module.name.endswith("nvml_driver"):  # loads the driver's library
            continue
        loaded = importlib.import_module(module.name)
        classes = [one for _, one in inspect.getmembers(loaded, inspect.isclass) if one.__module__ == module.name]
        names = (getattr(one, "NAME", None) for one in (loaded, *classes))
        yield from (name for name in names if isinstance(name, str))


@pytest.mark.parametrize("name", sorted(set(probe_names())))
def test_every_probe_is_in_its_readme(repository: Path, name: str) -> None:
    """With what it reads, needs and costs; add a row to the table of probes."""
    assert f"| `{name}` |" in (repository / "probes" / "perfwatch_probes" / "README.md").read_text()


def test_every_metric_is_documented(repository: Path) -> None:
    """By the name under which it is scraped."""
    text = (repository / "launcher" / "perfwatch" / "exporters" / "README.md").read_text()
    endings = {"counter": "_total", "info": "_info"}
    names = {
        f"{one.name}{endings.get(one.type, '')}"
        for one in families([], NodeSnapshot(watched=0, adopted=0, recorded_bytes=0))
    }

    assert {name for name in names if f"`{name}`" not in text} == set()


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


def test_the_changelog_has_the_version(repository: Path) -> None:
    """What users see is written down."""
    assert f"## {perfwatch.__version__}" in (repository / "CHANGELOG.md").read_text()


def sentences(module: Path) -> Iterator[tuple[int, str]]:
    """Each string of a module that reads like prose, with its line; of its docstrings those that are the help of a command."""
    tree = ast.parse(module.read_text())
    scopes = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    bodies = (node.body for node in ast.walk(tree) if isinstance(node, scopes))
    docstrings = {id(body[0].value) for body in bodies if body and isinstance(body[0], ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.search(r"[a-z]{3}.* ", node.value):
            if id(node) not in docstrings or module.parent.name == "commands":
                yield node.lineno, node.value


def unwanted(text: str) -> list[str]:
    """The words of a text that no user reads."""
    return [found[0] for pattern in UNWANTED for found in re.finditer(pattern, text, re.IGNORECASE)]


def test_what_users_read_is_in_the_words_of_the_trade() -> None:
    """Messages, summaries, helps: a private word costs whoever reads it at 3 a.m. a search; ``UNWANTED`` says what to write."""
    modules = (path for root in ("launcher", "probes") for path in sorted((ROOT / root).rglob("*.py")))
    found = [
        f"{module.relative_to(ROOT)}:{line}: {word}"
        for module in modules
        if NOT_FOR_USERS.isdisjoint(module.parts)
        for line, text in sentences(module)
        for word in unwanted(text)
    ]

    assert found == []


@pytest.mark.parametrize("page", PAGES, ids=PAGE_NAMES)
def test_a_page_is_in_the_words_of_the_trade(page: Path) -> None:
    """Explanations of causes, READMEs, the changelog."""
    assert unwanted(page.read_text()) == []


@pytest.mark.parametrize("file", ["page.html", "page.css", "page.js"])
def test_the_page_of_a_report_is_in_the_words_of_the_trade(file: str) -> None:
    """Its headings stand in the template, and some words in the style sheet."""
    assert unwanted((ROOT / "launcher" / "perfwatch" / "report" / "page" / file).read_text()) == []
