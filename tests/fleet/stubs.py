"""Programs that stand in for srun and kubectl: each writes down exactly how it was called."""

import json
import os
import sys
from pathlib import Path

import pytest

_NOTES = """#!{python}
import json, sys
with open({log!r}, "a") as log:
    log.write(json.dumps(sys.argv) + "\\n")
{body}
"""


class Stubs:
    """A folder that comes first on PATH."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log = folder / "calls"
        self._folder = folder / "bin"
        self._folder.mkdir()
        monkeypatch.setenv("PATH", f"{self._folder}{os.pathsep}{os.environ['PATH']}")

    def add(self, name: str, body: str = "") -> None:
        """A program; ``body`` is Python, with ``sys`` and ``json`` at hand."""
        program = self._folder / name
        program.write_text(_NOTES.format(python=sys.executable, log=str(self.log), body=body))
        program.chmod(0o755)

    def calls(self) -> list[list[str]]:
        """How the programs were called, in order, each by its own name."""
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [[Path(line[0]).name, *line[1:]] for line in lines]


@pytest.fixture
def stubs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stubs:
    """None yet."""
    return Stubs(tmp_path, monkeypatch)
