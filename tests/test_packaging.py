"""What is installed is what is in the folders: a package that the list lacks is missing only from the wheel."""

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@pytest.fixture(scope="module")
def project(repository: Path) -> dict[str, Any]:
    """The content of pyproject.toml."""
    return tomllib.loads((repository / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def wheel(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names of the files in a wheel that was built from what git would ship."""
    source = tmp_path_factory.mktemp("source")
    shipped = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=repository,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split("\0")
    for name in filter(None, shipped):
        if (repository / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((repository / name).read_bytes())
    folder = tmp_path_factory.mktemp("wheel")
    command = (sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "--wheel-dir", str(folder), str(source))
    subprocess.run(command, check=True, timeout=300)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as archive:
        return set(archive.namelist())


def packages_in(folder: Path, name: str) -> set[str]:
    """Dotted names of the packages below a folder."""
    found = {name}
    for path in folder.rglob("*.py"):
        parts = path.parent.relative_to(folder).parts
        if "__pycache__" not in parts:
            found.add(".".join((name, *parts)))
    return found


def test_every_folder_with_python_in_it_is_a_listed_package(repository: Path, project: dict[str, Any]) -> None:
    """The list in pyproject.toml is kept by hand, and an omission is silent."""
    listed = set(project["tool"]["setuptools"]["packages"])
    there = packages_in(repository / "launcher", "perfwatch") | packages_in(repository / "probes", "perfwatch.probes")

    assert listed == there


def test_no_folder_shadows_the_probes(repository: Path) -> None:
    """``launcher/probes`` would hide ``perfwatch.probes`` in editable installs."""
    assert not list((repository / "launcher").glob("probes*"))


def test_the_wheel_holds_every_module_and_nothing_under_another_name(repository: Path, wheel: set[str]) -> None:
    """Each Python file of both folders is there, drills and the agent included."""
    expected = {
        str(Path(name, path.relative_to(repository / folder)))
        for folder, name in (("launcher", "perfwatch"), ("probes", "perfwatch/probes"))
        for path in (repository / folder).rglob("*.py")
    }

    assert {name for name in wheel if name.endswith(".py")} == expected


@pytest.mark.parametrize(
    "name",
    [
        "perfwatch/agent/sitecustomize.py",
        "perfwatch/agent_parts/modes.py",
        "perfwatch/py.typed",
        "perfwatch/drills/stage.py",
        "perfwatch/report/page/page.html",
        "perfwatch/report/page/page.css",
        "perfwatch/storing/secret_rules.json",
        "perfwatch/storing/secret_rules.LICENSE",
    ],
)
def test_the_wheel_holds_what_is_read_by_path(wheel: set[str], name: str) -> None:
    """A wheel without the agent leaves ``run`` silently unarmed."""
    assert name in wheel


def test_torch_is_no_dependency(project: dict[str, Any]) -> None:
    """Whoever has torch keeps theirs; whoever has none does not need it."""
    assert not [needed for needed in project["project"]["dependencies"] if needed.startswith("torch")]


def test_the_versions_agree(project: dict[str, Any]) -> None:
    """The version that is printed is the one that is installed."""
    import perfwatch

    assert perfwatch.__version__ == project["project"]["version"]
