"""The agent arms torch's flight recorder inside a process, and nowhere else: a pipe that cannot be made would end a rank."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from perfwatch.processes.place import Place
from tests.agent.conftest import AGENT_FOLDER, Run

pytestmark = pytest.mark.live

PIPE, DUMP, OLD_DUMP = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
ON_TIMEOUT = "TORCH_NCCL_DUMP_ON_TIMEOUT"
# What torch would read, and what the program sees.
LOOK = (
    "import ctypes, json, os, subprocess, sys\n"
    "getenv = ctypes.CDLL(None).getenv\n"
    "getenv.restype = ctypes.c_char_p\n"
    f"NAMES = {[PIPE, DUMP, OLD_DUMP, ON_TIMEOUT]}\n"
    "def look(): return [[(getenv(name.encode()) or b'').decode() for name in NAMES], [os.environ.get(name) for name in NAMES]]\n"
)
TELL = "print(json.dumps(look()), flush=True)\n"
NOTHING = [["", "", "", ""], [None] * 4]


def seen(text: str) -> list[Any]:
    """What the program has told, line by line."""
    return [json.loads(line) for line in text.splitlines()]


def test_recorder_is_armed_when_torch_is_imported_and_the_program_does_not_see_it(
    interpreter: str, run: Run, agent_directory: Path, hook_api: Path
) -> None:
    """Before, nothing; afterwards torch finds it, and the program's own environment is as it was."""
    done = run(interpreter, LOOK + TELL + "import torch\n" + TELL, hook_api)
    armed = [f"{agent_directory}/fr_pipe_", f"{agent_directory}/fr_rank_", "", "1"]

    assert seen(done.stdout) == [NOTHING, [armed, [None] * 4]]
    assert done.stderr == ""


@pytest.mark.parametrize(
    "gone", ["missing", pytest.param("forbidden", marks=pytest.mark.skipif(os.getuid() != 0, reason="needs root"))]
)
def test_recorder_is_not_armed_where_the_pipe_could_not_be_made(
    interpreter: str, run: Run, agent_directory: Path, hook_api: Path, gone: str
) -> None:
    """Another host or container, where the folder is missing; another user, who may not write there (and here may still import)."""
    first = "os.rmdir(os.environ['PERFWATCH_AGENT_DIR'])\n" if gone == "missing" else "os.setreuid(65534, 0)\n"
    done = run(interpreter, LOOK + first + "import torch\n" + TELL, hook_api)

    assert seen(done.stdout) == [NOTHING]


def test_what_the_user_has_set_stays(interpreter: str, run: Run, agent_directory: Path, hook_api: Path) -> None:
    """Also the older name of where dumps go, and what is set after torch's import."""
    chosen = {PIPE: "/scratch/p_", OLD_DUMP: "/scratch/d_", ON_TIMEOUT: "0"}
    done = run(interpreter, LOOK + f"os.environ.update({chosen})\nimport torch\n" + TELL, hook_api)
    (own,) = seen(done.stdout)
    late = run(interpreter, LOOK + f"import torch\nos.environ.setdefault({PIPE!r}, '/scratch/p_')\n" + TELL, hook_api)

    assert own == [["/scratch/p_", "", "/scratch/d_", "0"], ["/scratch/p_", None, "/scratch/d_", "0"]]
    assert seen(late.stdout)[0][0][0] == "/scratch/p_"


def test_programs_that_an_armed_process_starts_arm_themselves_or_not_at_all(
    interpreter: str, run: Run, agent_directory: Path, hook_api: Path
) -> None:
    """One that inherits its environment is not armed by it before torch is there, and not where the folder has gone."""
    child = LOOK + TELL + "import torch\n" + TELL
    program = LOOK + (
        "import torch, shutil\n"
        f"child = {child!r}\n"
        "subprocess.run([sys.executable, '-c', child])\n"
        "shutil.rmtree(os.environ['PERFWATCH_AGENT_DIR'])\n"
        "subprocess.run([sys.executable, '-c', child])\n"
        "os.execv(sys.executable, [sys.executable, '-c', child])\n"
    )
    done = run(interpreter, program, hook_api)
    armed = [[f"{agent_directory}/fr_pipe_", f"{agent_directory}/fr_rank_", "", "1"], [None, None, None, "1"]]
    without = [["", "", "", "1"], [None, None, None, "1"]]

    assert seen(done.stdout) == [without, armed, *[without] * 4]


def test_forked_process_is_armed_as_its_parent_is(
    interpreter: str, run: Run, agent_directory: Path, hook_api: Path
) -> None:
    """It is the same user on the same host, and may be a rank."""
    program = LOOK + "import torch\npid = os.fork()\nif not pid:\n    " + TELL + "    os._exit(0)\nos.waitpid(pid, 0)\n"
    done = run(interpreter, program, hook_api)

    assert seen(done.stdout)[0][0][0] == f"{agent_directory}/fr_pipe_"


def test_folder_stays_for_as_long_as_an_armed_process_lives(
    interpreter: str, run: Run, agent_directory: Path, hook_api: Path
) -> None:
    """Also when its launcher has gone: torch makes the pipe long after its import. No standard stream is taken for that."""
    program = "import os, sys\nos.close(0)\nimport torch\nprint(open('/dev/null').fileno(), flush=True)\nos.read(int(sys.argv[1]), 1)\n"
    reader, writer = os.pipe()
    environment = {
        **os.environ,
        "PYTHONPATH": f"{AGENT_FOLDER}:{hook_api}",
        "PERFWATCH_AGENT_DIR": str(agent_directory),
    }
    with subprocess.Popen(
        [interpreter, "-c", program, str(reader)],
        env=environment,
        pass_fds=(reader,),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"0\n"
        Place(agent_directory, "root-0", shared=False).leave()
        kept = agent_directory.exists()
        os.close(reader)
        os.close(writer)
    Place(agent_directory, "root-0", shared=False).leave()

    assert (kept, agent_directory.exists()) == (True, False)
