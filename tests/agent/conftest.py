"""Programs run under the agent as ``perfwatch run`` would run them, under every Python that this machine has."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import perfwatch

AGENT_FOLDER = Path(perfwatch.__file__).parent / "agent" / "on_path"
VERSIONS = ("3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14")
OLDER = ("2.7", "3.6", "3.7")  # than any torch that is watched: a job may call their programs


def interpreters(versions: tuple[str, ...] = VERSIONS) -> list[str]:
    """One interpreter of each version that is on PATH or under pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = {}
    for version in versions:
        candidates = [str(path) for path in sorted(pyenv.glob(f"{version}.*/bin/python"))]
        executable = next(iter(candidates), None) or shutil.which(f"python{version}")
        if executable:
            found[version] = executable
    return list(found.values())


@pytest.fixture(params=interpreters() or [sys.executable], ids=lambda path: Path(path).parent.parent.name)
def interpreter(request: pytest.FixtureRequest) -> str:
    """Each Python in turn."""
    return str(request.param)


@pytest.fixture
def agent_directory(tmp_path: Path) -> Path:
    """Where the agent of this test writes."""
    folder = tmp_path / "agent"
    folder.mkdir()
    return folder


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(agent_directory: Path) -> Run:
    """Run a program text: ``run(python, text, *path, armed=True)``; ``path`` follows the agent on PYTHONPATH."""

    def start(
        python: str, text: str, *path: Path, armed: bool = True, tracer: int | None = None
    ) -> "subprocess.CompletedProcess[str]":
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PERFWATCH"))
        }
        folders = [str(folder) for folder in path]
        if armed:
            folders.insert(0, str(AGENT_FOLDER))
            environment["PERFWATCH_AGENT_DIR"] = str(agent_directory)
        if tracer is not None:
            environment["PERFWATCH_TRACER_PID"] = str(tracer)
        if folders:
            environment["PYTHONPATH"] = os.pathsep.join(folders)
        return subprocess.run([python, "-c", text], env=environment, capture_output=True, text=True, timeout=120)

    return start


@pytest.fixture
def hook_api(tmp_path: Path) -> Path:
    """A package named torch with the hook interface of ``torch.optim.optimizer``, for Pythons without torch."""
    folder = tmp_path / "site"
    optim = folder / "torch" / "optim"
    optim.mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text("import multiprocessing.util\nimport torch.optim\n")
    (optim / "__init__.py").write_text("from torch.optim.optimizer import Optimizer\nfrom torch.optim.sgd import SGD\n")
    (optim / "sgd.py").write_text("from torch.optim.optimizer import Optimizer\nclass SGD(Optimizer): pass\n")
    (optim / "optimizer.py").write_text(
        "hooks = []\n"
        "def register_optimizer_step_post_hook(hook): hooks.append(hook)\n"
        "class Optimizer:\n"
        "    def step(self):\n"
        "        for hook in hooks: hook(self, (), {})\n"
    )
    return folder
