"""Who may import what: the directions that keep verdicts pure, the launcher light and ``--help`` fast."""

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest

# Triage turns a recording into a verdict and sees nothing else: no clock, file, process, chance or environment.
# (Of ``signal`` it takes the names of signals, of ``shlex`` how a name is quoted.)
ALLOWED_IN_TRIAGE = {
    "abc", "ast", "bisect", "collections", "dataclasses", "datetime", "enum", "functools", "heapq", "itertools", "math",
    "msgspec", "operator", "re", "shlex", "signal", "statistics", "string", "types", "typing", "perfwatch",
    "perfwatch_probes",
}  # fmt: skip
ALLOWED_FROM_PERFWATCH_IN_TRIAGE = (
    "perfwatch.actions.",  # a table
    "perfwatch.failures.",  # a table and what looks a line up in it
    "perfwatch.hang_timeout.",
    "perfwatch.ownership.",
    "perfwatch.text.",
    "perfwatch.triage.",
    "perfwatch.verdict.",
    "perfwatch_probes.readings",
    "perfwatch_probes.bounds.",
    "perfwatch_probes.lineage.",
    "perfwatch.recording.recording.",
    "perfwatch.recording.session.Session",
)
# All that the launcher and the scripts may import of triage; import-linter holds it too, but for scripts and modules that are new.
INTERFACE_OF_TRIAGE = ("job", "history", "case", "diagnose", "rule", "rules", "questions")
CALLS_THAT_ASK_A_CLOCK = {"now", "today", "utcnow"}


@functools.cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """The syntax tree of a file, flat: several tests look at the same files."""
    return tuple(ast.walk(ast.parse(path.read_text())))


@functools.cache
def imports_of(path: Path) -> frozenset[str]:
    """Dotted names that a file imports, wherever in it; ``from a import b`` gives ``a.b``."""
    found = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(found)


def triage_files() -> list[Path]:
    """Every module of triage."""
    return sorted((Path(__file__).parent.parent / "launcher" / "perfwatch" / "triage").rglob("*.py"))


@pytest.mark.parametrize("path", triage_files(), ids=lambda path: str(path.name))
def test_triage_imports_nothing_that_looks_at_the_world(path: Path) -> None:
    """A verdict is a pure function of the recording."""
    foreign = {name for name in imports_of(path) if name.split(".")[0] not in ALLOWED_IN_TRIAGE}
    ours = {name for name in imports_of(path) if name.startswith("perfwatch")}

    assert foreign == set()
    assert {name for name in ours if not name.startswith(ALLOWED_FROM_PERFWATCH_IN_TRIAGE)} == set()


def test_triage_is_asked_through_its_interface(repository: Path) -> None:
    """Its inside can be rewritten without its users: they ask ``perfwatch.triage.questions``."""
    inside = repository / "launcher" / "perfwatch" / "triage"
    users = [path for tree in ("launcher", "scripts") for path in (repository / tree).rglob("*.py")]
    wrong = {
        (str(path.relative_to(repository)), name)
        for path in users
        if not path.is_relative_to(inside) and path.name != "shadow.py"  # it compares the wait graph with the verdicts
        for name in imports_of(path)
        if name.startswith("perfwatch.triage.") and not _is_interface(name.removeprefix("perfwatch.triage."))
    }

    assert wrong == set()


def _is_interface(name: str) -> bool:
    """True for ``questions.regime`` and ``rules.RULES``; a module of ``rules`` is a rule, and inside."""
    module, _, rest = name.partition(".")
    return module in INTERFACE_OF_TRIAGE and "." not in rest


@pytest.mark.parametrize("path", triage_files(), ids=lambda path: str(path.name))
def test_triage_asks_no_clock(path: Path) -> None:
    """``datetime`` may format a time that the recording holds; it may not say what time it is."""
    asked = [
        node.attr for node in nodes_of(path) if isinstance(node, ast.Attribute) and node.attr in CALLS_THAT_ASK_A_CLOCK
    ]

    assert asked == []


def test_probes_import_nothing_of_perfwatch_but_probes(repository: Path) -> None:
    """The folder can be read, and tried, without knowing the rest."""
    wrong = {
        (path.name, name)
        for path in (repository / "probes").rglob("*.py")
        for name in imports_of(path)
        if name.split(".")[0] == "perfwatch"
    }

    assert wrong == set()


def test_nothing_waits_with_select(repository: Path) -> None:
    """``select.select`` fails for descriptors from 1024 on, which a parent may have left open: ``readable`` takes any."""
    files = [path for tree in ("launcher", "probes") for path in (repository / tree).rglob("*.py")]
    files = [path for path in files if "select" in path.read_text().lower()]  # others need not be parsed
    wrong = [
        str(path.relative_to(repository)) for path in files if any(_waits_with_select(node) for node in nodes_of(path))
    ]

    assert wrong == []


def _waits_with_select(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return any(name.name in ("select", "SelectSelector") for name in node.names)
    if not isinstance(node, ast.Attribute):
        return False
    of_the_module = isinstance(node.value, ast.Name) and node.value.id == "select" and node.attr == "select"
    return of_the_module or node.attr == "SelectSelector"


def test_nothing_but_the_command_line_imports_commands(repository: Path) -> None:
    """What a command does lies elsewhere, so that it can be used without one."""
    wrong = {
        (str(path.relative_to(repository)), name)
        for path in (repository / "launcher").rglob("*.py")
        for name in imports_of(path)
        if name.startswith("perfwatch.commands") and path.name != "cli.py" and path.parent.name != "commands"
    }

    assert wrong == set()


def test_the_agent_imports_only_the_standard_library(repository: Path) -> None:
    """It runs inside the training, perhaps under a Python that has never heard of perfwatch."""
    files = (repository / "launcher" / "perfwatch").glob("agent/**/*.py")
    names = {name.split(".")[0] for file in files for name in imports_of(file)}

    assert names - sys.stdlib_module_names - {"torch", "sitecustomize"} == set()  # it chains to the one that it shadows


def modules_after(code: str) -> set[str]:
    """Top-level names of every module that is loaded after ``code`` has run in a fresh interpreter."""
    script = f"{code}\nimport sys\nprint(' '.join({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.live
def test_help_loads_neither_torch_nor_rich() -> None:
    """``perfwatch --help`` answers at once: each of these costs more than all the rest."""
    code = (
        "from perfwatch.cli import main\n"
        "try:\n    main(['--help'])\n"
        "except SystemExit as end:\n    assert not end.code, end.code"
    )

    assert modules_after(code) & {"torch", "rich", "numpy", "psutil"} == set()


@pytest.mark.live
def test_no_module_of_the_launcher_needs_torch(repository: Path) -> None:
    """Every module but the drill programs and the agent is imported, and torch is not loaded by any of them."""
    names = sorted(
        ".".join(path.relative_to(repository / "launcher").with_suffix("").parts)
        for path in (repository / "launcher").rglob("*.py")
        if path.name not in ("__init__.py", "__main__.py", "sitecustomize.py") and path.parent.name != "programs"
    )
    code = "import importlib\n" + "\n".join(f"importlib.import_module({name!r})" for name in names)

    assert "torch" not in modules_after(code)
