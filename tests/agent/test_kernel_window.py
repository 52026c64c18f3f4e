"""The agent begins and ends a window with ncu's library, and never keeps a program for somebody who died."""

import os
import shutil
from pathlib import Path

import pytest

from tests.agent.conftest import Run
from tests.nsight.attachable import built_library

pytestmark = pytest.mark.live

if shutil.which("cc") is None:
    pytest.skip("there is no C compiler to make a library with", allow_module_level=True)

PROGRAM = (
    "import os, fcntl, threading\n"
    "folder = os.environ['PERFWATCH_AGENT_DIR']\n"
    "os.environ.update(PERFWATCH_KERNEL_WINDOW='1', PERFWATCH_KERNEL_LIBRARY={library!r}, STANDIN=folder + '/said')\n"
    "{first}\n"
    "import torch\n"
    "step = torch.optim.SGD().step\n"
    "door = folder + '/kernels-%d' % os.getpid()\n"
    "def said(): return open(folder + '/said').read().split() if os.path.exists(folder + '/said') else []\n"
    "def open_door(steps):\n"
    "    file = open(door + '.new', 'w')\n"
    "    file.write(str(steps)); file.flush()\n"
    "    fcntl.flock(file, fcntl.LOCK_EX)\n"
    "    os.rename(door + '.new', door)\n"
    "    return file\n"
    "def guard_ended():\n"
    "    for thread in threading.enumerate():\n"
    "        if thread.name == 'perfwatch-ncu': thread.join(60)\n"
    "step()\n"
    "{then}\n"
)
TWO_STEPS = (
    "held = open_door(2)\n"
    "print(said())\n"
    "step(); print(said())\n"
    "step(); print(said())\n"
    "step(); print(said(), os.path.exists(door))\n"
    "guard_ended(); step(); print(said())\n"
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in."""
    return built_library(tmp_path_factory.mktemp("library"))


def test_a_window_is_as_many_steps_as_its_door_says(
    interpreter: str, run: Run, agent_directory: Path, hook_api: Path, library: Path
) -> None:
    """Begun at the end of the next step, ended once, and its door taken away."""
    done = run(interpreter, PROGRAM.format(library=str(library), first="", then=TWO_STEPS), hook_api)

    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "[]",
        "['begin', '16']",
        "['begin', '16']",
        "['begin', '16', 'end', '16'] False",
        "['begin', '16', 'end', '16']",
    ]
    assert next(agent_directory.glob("kernels-open-*")).read_text() == "0"


@pytest.mark.parametrize("how", ["held.close()", "os.unlink(door)"])
def test_a_window_ends_with_whoever_asked_for_it(
    interpreter: str, run: Run, hook_api: Path, library: Path, how: str
) -> None:
    """Though no step ends: what waits for ncu would wait for ever."""
    then = (
        f"held = open_door(5)\nstep()\n{how}\nguard_ended()\nprint(said(), os.path.exists(door))\nstep(); print(said())"
    )
    done = run(interpreter, PROGRAM.format(library=str(library), first="", then=then), hook_api)

    assert done.stdout.splitlines() == ["['begin', '16', 'end', '16'] False", "['begin', '16', 'end', '16']"]


def test_a_door_that_nobody_holds_is_not_opened(interpreter: str, run: Run, hook_api: Path, library: Path) -> None:
    """Left behind by somebody who died."""
    then = "open(door, 'w').write('3')\nstep(); step()\nprint(said())"
    assert run(interpreter, PROGRAM.format(library=str(library), first="", then=then), hook_api).stdout == "[]\n"


def test_a_library_that_refuses_leaves_the_window_shut(
    interpreter: str, run: Run, agent_directory: Path, hook_api: Path, library: Path
) -> None:
    """Its answer is written, its end is not called."""
    first = "os.environ['STANDIN_CODE'] = '3'"
    then = "held = open_door(1)\nstep(); print(said()); held.close(); os.unlink(door); step(); print(said())"
    done = run(interpreter, PROGRAM.format(library=str(library), first=first, then=then), hook_api)

    assert done.stdout.splitlines() == ["['begin', '16']"] * 2
    assert next(agent_directory.glob("kernels-open-*")).read_text() == "3"


def test_a_library_that_cannot_be_loaded_costs_the_program_nothing(
    interpreter: str, run: Run, agent_directory: Path, hook_api: Path
) -> None:
    """The reason lies where a capture looks."""
    then = "held = open_door(1)\nstep(); print(said())"
    done = run(interpreter, PROGRAM.format(library="/nowhere/libcuda-injection.so", first="", then=then), hook_api)

    assert (done.stdout, done.stderr) == ("[]\n", "")
    answer = next(agent_directory.glob("kernels-open-*"))
    assert "No such file" in answer.read_text()
    assert os.stat(answer).st_mode & 0o077 == 0
