"""What is installed is what is in the folders: the wheel holds every module and each file that is read by its path."""

import hashlib
import io
import re
import shutil
import subprocess
import sys
import tarfile
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
    options = (
        "--no-deps",
        "--no-build-isolation",
        "--quiet",
        "--wheel-dir",
        str(folder),
    )  # isolation needs the network
    command = (sys.executable, "-m", "pip", "wheel", *options, str(source))
    subprocess.run(command, check=True, timeout=300)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as archive:
        return set(archive.namelist())


@pytest.mark.live
def test_the_wheel_holds_every_module_and_nothing_under_another_name(repository: Path, wheel: set[str]) -> None:
    """Each Python file of both folders is there, drills and the agent included."""
    roots = (repository / "launcher", repository / "probes")
    expected = {str(path.relative_to(root)) for root in roots for path in root.rglob("*.py")}

    assert {name for name in wheel if name.endswith(".py")} == expected


@pytest.mark.live
@pytest.mark.parametrize(
    "name",
    [
        "perfwatch/agent/on_path/sitecustomize.py",
        "perfwatch/agent/modes.py",
        "perfwatch/py.typed",
        "perfwatch/drills/programs/stage.py",
        "perfwatch/report/page/page.html",
        "perfwatch/report/page/page.css",
        "perfwatch/report/page/page.js",
        "perfwatch/recording/secret_rules.json",
        "perfwatch/recording/secret_rules.LICENSE",
    ],
)
def test_the_wheel_holds_what_is_read_by_path(wheel: set[str], name: str) -> None:
    """A wheel without the agent leaves ``run`` silently unarmed."""
    assert name in wheel


def test_torch_is_no_dependency(project: dict[str, Any]) -> None:
    """Whoever has torch keeps theirs; whoever has none does not need it."""
    assert not [needed for needed in project["project"]["dependencies"] if needed.startswith("torch")]


@pytest.mark.live
@pytest.mark.parametrize(
    ("package", "line", "requirement"),
    [
        ("perfetto", "report SESSION -o a.pftrace", "'perfetto>=0.11'"),
        ("prometheus_client", "run --metrics-port 9123 -- true", "'prometheus-client>=0.20'"),
        ("ClusterShell", "fleet --hosts node-a --job 1", "'ClusterShell>=1.9'"),
        ("psutil", "drill", "'psutil>=5.9'"),
    ],
)
def test_an_extra_that_is_needed_is_offered_with_the_command_that_adds_it(
    package: str, line: str, requirement: str, tmp_path: Path
) -> None:
    """Into the environment that perfwatch runs in; the package itself, for our name on the index is another project's."""
    from tests.hostile import record

    without = f"import sys; sys.modules[{package!r}] = None; from perfwatch.__main__ import main; main()"
    words = line.replace("SESSION", str(record(tmp_path / "session"))).split()

    result = subprocess.run(
        [sys.executable, "-c", without, *words], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )

    said, advice = result.stderr.splitlines()
    assert (result.returncode, result.stdout) == (2, "")
    assert said.endswith(", which is not installed")
    assert advice.strip().startswith((sys.executable, "uv pip install"))
    assert advice.endswith(f" {requirement}")


def test_no_text_advises_to_install_what_another_project_has_under_our_name(repository: Path) -> None:
    """``perfwatch`` on the package index is a tool of somebody else, and newer."""
    texts = [
        path
        for folder in ("launcher", "probes", "scripts", ".github")
        for path in (repository / folder).rglob("*")
        if path.suffix in (".py", ".md", ".sh", ".yaml", ".html", "")
    ]
    advice = re.compile(
        r"""pip3? install [^\n]*(?<![\w/.-])perfwatch(?![\w/-])|uv tool install ["']?perfwatch|pipx install ["']?perfwatch"""
    )

    found = [
        path
        for path in (*texts, repository / "README.md")
        if path.is_file() and advice.search(path.read_text(errors="replace"))
    ]

    assert found == []


def test_the_versions_agree(project: dict[str, Any]) -> None:
    """The version that is printed is the one that is installed."""
    import perfwatch

    assert perfwatch.__version__ == project["project"]["version"]


@pytest.mark.live
def test_man_page_and_completions_are_what_the_helps_say(repository: Path) -> None:
    """They are made anew with ``scripts/packaging/manual.py`` where an option has changed."""
    done = subprocess.run(
        (sys.executable, "scripts/packaging/manual.py", "--check"),
        cwd=repository,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.live
@pytest.mark.skipif(shutil.which("groff") is None, reason="needs groff")
def test_the_man_page_is_shown_without_a_warning(repository: Path) -> None:
    """With every command of the help."""
    page = repository / "scripts/packaging/share/man/man1/perfwatch.1"
    done = subprocess.run(("groff", "-man", "-Tutf8", "-ww", str(page)), capture_output=True, text=True, timeout=60)

    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage: perfwatch daemon" in re.sub(r"\x1b\[[\d;]*m", "", done.stdout)


@pytest.mark.live
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_accepts_the_completions(repository: Path, shell: str) -> None:
    """By its own syntax check."""
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    (file,) = (
        path
        for path in (repository / "scripts/packaging/share").rglob("*perfwatch*")
        if shell in str(path) and path.is_file()
    )

    assert subprocess.run((shell, "-n", str(file)), timeout=60).returncode == 0


@pytest.mark.live
def test_the_man_page_and_the_completions_are_in_the_wheel(wheel: set[str], project: dict[str, Any]) -> None:
    """Below ``share``, which pip, pipx and uv merge into the environment."""
    data = {name.partition(".data/data/")[2] for name in wheel if ".data/data/" in name}

    assert data == {
        "share/man/man1/perfwatch.1", "share/bash-completion/completions/perfwatch",
        "share/zsh/site-functions/_perfwatch", "share/fish/vendor_completions.d/perfwatch.fish",
    }  # fmt: skip


@pytest.mark.live
def test_a_source_archive_is_the_same_bytes_each_time(repository: Path, tmp_path: Path) -> None:
    """Whoever builds it, and whenever: members are sorted, of nobody, and of one time."""
    digests = set()
    for number, (owner, mode) in enumerate((("ann", 0o664), ("bob", 0o600))):
        archive = tmp_path / f"{number}.tar.gz"
        with tarfile.open(archive, "w:gz") as made:
            for name in ("b", "a") if number else ("a", "b"):
                member = tarfile.TarInfo(name)
                member.uname, member.mode, member.mtime = owner, mode, 1000 + number
                made.addfile(member, io.BytesIO())
        normalize = "import sys; from pathlib import Path; from reproducible import normalize"
        normalize += "; normalize(Path(sys.argv[1]), 1_700_000_000)"
        subprocess.run([sys.executable, "-c", normalize, archive], check=True, cwd=repository / "scripts" / "packaging")
        digests.add(hashlib.sha256(archive.read_bytes()).hexdigest())

    assert len(digests) == 1
