"""The agent counts steps and keeps crashes, and a program cannot tell that it is there."""

import os
from pathlib import Path

import pytest

from perfwatch_probes.agent_folder import AgentFolder
from perfwatch_probes.readings import Steps
from perfwatch_probes.steps import StepCounter
from tests.agent.conftest import AGENT_FOLDER, OLDER, Run, interpreters

pytestmark = pytest.mark.live

STEPS = "import torch, os\noptimizer = torch.optim.SGD()\nfor _ in range({steps}): optimizer.step()\n"


def counts(folder: Path) -> dict[int, int]:
    """Steps by pid, as the probe reads them."""
    return {
        reading.pid: reading.count
        for reading in StepCounter(AgentFolder(folder), str).look()
        if isinstance(reading, Steps)
    }


def test_counts_every_step(interpreter: str, run: Run, agent_directory: Path, hook_api: Path) -> None:
    """Also after the ring has come round."""
    done = run(
        interpreter,
        STEPS.format(steps=500) + "print(os.getpid(), os.listdir(os.environ['PERFWATCH_AGENT_DIR']))",
        hook_api,
    )
    pid = int(done.stdout.split()[0])

    assert counts(agent_directory) == {pid: 500}
    assert done.stderr == ""


TURNS = {
    "one": ("", "optimizer.step()", 1.0),
    "two that take turns": ("second = torch.optim.SGD()", "optimizer.step(); second.step()", 2.0),
    "one five times as often": (
        "second = torch.optim.SGD()",
        "second.step(); [optimizer.step() for _ in range(5)]",
        1.2,
    ),
    "another one from then on": ("optimizer = torch.optim.SGD()", "optimizer.step()", 1.0),
    "one for each of some parameters": (
        "some = [torch.optim.SGD() for _ in range(40)]",
        "[s.step() for s in some]",
        40.0,
    ),
    "more than a page shows": ("some = [torch.optim.SGD() for _ in range(300)]", "[s.step() for s in some]", None),
}


@pytest.mark.parametrize("turns", TURNS)
def test_how_many_steps_belong_together_is_told(
    interpreter: str, run: Run, agent_directory: Path, hook_api: Path, turns: str
) -> None:
    """Where several optimizers take turns; each step is counted all the same."""
    made, each, together = TURNS[turns]
    program = f"{STEPS.format(steps=20)}{made}\nwhile len(calls) < 600: {each}\n"
    counted = (
        "from torch.optim import optimizer as module\ncalls = []\nmodule.hooks.append(lambda *_: calls.append(1))\n"
    )
    run(interpreter, program.replace("optimizer = torch", counted + "optimizer = torch", 1), hook_api)
    (steps,) = (one for one in StepCounter(AgentFolder(agent_directory), str).look() if isinstance(one, Steps))

    assert steps.count >= 600
    assert steps.steps_each_turn == (together if together is None else pytest.approx(together, rel=0.15))


# A clock on which hours pass between two steps: torch is asked once a second.
HOURS = "import time, itertools\ntime.monotonic_ns = itertools.count(1, 3600 * 10**9).__next__\n"
SWITCHES = (
    "anomaly = benchmark = False\n"
    "def is_anomaly_enabled(): return anomaly\n"
    "def _get_cudnn_benchmark(): return benchmark\n"
)


def test_what_is_on_in_torch_is_told_with_the_steps(
    interpreter: str, run: Run, agent_directory: Path, hook_api: Path
) -> None:
    """As it was not a second before the newest step; a forked trainer's page begins with what its parent has switched on."""
    (hook_api / "torch" / "_C.py").write_text(SWITCHES)
    (hook_api / "torch" / "__init__.py").write_text("import torch._C\nimport torch.optim\n")
    program = (
        HOURS + STEPS.format(steps=2) + "torch._C.benchmark = torch._C.anomaly = True\n"
        "optimizer.step()\n"
        "torch._C.anomaly = False\n"
        "for _ in range(2): optimizer.step()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    torch._C.anomaly = True\n"
        "    optimizer.step()\n"
        "    os._exit(0)\n"
        "os.waitpid(child, 0)\n"
        "print(os.getpid(), child)\n"
    )
    done = run(interpreter, program, hook_api)
    parent, child = (int(word) for word in done.stdout.split())
    modes = {
        one.pid: one.modes for one in StepCounter(AgentFolder(agent_directory), str).look() if isinstance(one, Steps)
    }

    assert modes == {parent: ("cudnn_benchmark",), child: ("anomaly_detection", "cudnn_benchmark")}
    assert done.stderr == ""


def test_a_question_that_fails_later_is_none_of_the_programs_concern(
    interpreter: str, run: Run, agent_directory: Path, hook_api: Path
) -> None:
    """Steps go on, and are counted."""
    (hook_api / "torch" / "_C.py").write_text(SWITCHES)
    (hook_api / "torch" / "__init__.py").write_text("import torch._C\nimport torch.optim\n")
    program = (
        HOURS
        + STEPS.format(steps=2)
        + (
            "class Odd:\n"
            "    def __bool__(self): raise RuntimeError\n"
            "torch._C.benchmark = Odd()\n"
            "for _ in range(2): optimizer.step()\n"
        )
    )
    done = run(interpreter, program, hook_api)
    (steps,) = (one for one in StepCounter(AgentFolder(agent_directory), str).look() if isinstance(one, Steps))

    assert (steps.count, steps.modes) == (4, ())
    assert done.stderr == ""


def test_of_a_torch_that_cannot_be_asked_nothing_is_told(
    interpreter: str, run: Run, agent_directory: Path, hook_api: Path
) -> None:
    """None is not "nothing is on"; the steps are counted."""
    run(interpreter, STEPS.format(steps=3), hook_api)
    (steps,) = (one for one in StepCounter(AgentFolder(agent_directory), str).look() if isinstance(one, Steps))

    assert (steps.count, steps.modes) == (3, None)


def test_forked_worker_has_no_page_until_it_steps(
    interpreter: str, run: Run, agent_directory: Path, hook_api: Path
) -> None:
    """A DataLoader worker leaves nothing; a forked trainer counts from one, and its parent's count is untouched."""
    program = STEPS.format(steps=3) + (
        "idle = os.fork()\n"
        "if idle == 0: os._exit(0)\n"
        "os.waitpid(idle, 0)\n"
        "busy = os.fork()\n"
        "if busy == 0:\n"
        "    optimizer.step()\n"
        "    os._exit(0)\n"
        "os.waitpid(busy, 0)\n"
        "optimizer.step()\n"
        "print(os.getpid(), busy)\n"
    )
    done = run(interpreter, program, hook_api)
    parent, busy = (int(word) for word in done.stdout.split())

    assert counts(agent_directory) == {parent: 4, busy: 1}


def test_steps_survive_a_folder_that_is_gone(interpreter: str, run: Run, agent_directory: Path, hook_api: Path) -> None:
    """Whatever fails in the agent, the program does not notice."""
    agent_directory.rmdir()
    done = run(interpreter, STEPS.format(steps=3) + "print('fine')", hook_api)

    assert (done.returncode, done.stdout, done.stderr) == (0, "fine\n", "")


def test_what_a_handler_of_signals_raises_while_a_step_is_counted_reaches_the_program(
    interpreter: str, run: Run, hook_api: Path
) -> None:
    """A time limit, or torch's word that a data worker has ended: without it a program may wait for ever."""
    program = STEPS.format(steps=1) + (
        "import signal, sys\n"
        "def out_of_time(*_): raise TimeoutError\n"
        "signal.signal(signal.SIGALRM, out_of_time)\n"
        "def interrupt(frame, event, function):\n"
        "    if event == 'c_return' and function.__name__ == 'pack_into':\n"
        "        sys.setprofile(None)\n"
        "        signal.raise_signal(signal.SIGALRM)\n"
        "sys.setprofile(interrupt)\n"
        "try: optimizer.step()\n"
        "except TimeoutError: print('heard')\n"
    )

    assert run(interpreter, program, hook_api).stdout == "heard\n"


def test_process_that_never_imports_torch_is_left_alone(interpreter: str, run: Run, agent_directory: Path) -> None:
    """No file, no hook, no module of ours."""
    program = (
        "import sys\nprint(sys.excepthook is sys.__excepthook__, 'ctypes' in sys.modules, 'mmap' in sys.modules)\n"
    )
    done = run(interpreter, program)

    assert done.stdout == "True False False\n"
    assert list(agent_directory.iterdir()) == []


def test_no_module_of_the_program_is_hidden_by_one_of_ours(
    interpreter: str, run: Run, agent_directory: Path, hook_api: Path, tmp_path: Path
) -> None:
    """Whatever the agent's files are called, a program that has a file of that name imports its own, before and after a step."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    names = {path.stem for path in AGENT_FOLDER.parent.rglob("*.py")} - {"sitecustomize"}
    for name in names:
        (theirs / f"{name}.py").write_text("")
    program = (
        "import importlib, sys\n"
        f"for name in {sorted(names)}:\n"
        "    print(importlib.import_module(name).__file__)\n"
        "    del sys.modules[name]\n"
    )
    done = run(interpreter, program + STEPS.format(steps=1) + program, theirs, hook_api)

    assert done.stdout.split() == [str(theirs / f"{name}.py") for name in sorted(names)] * 2
    assert list(counts(agent_directory).values()) == [1]


def test_shadowed_sitecustomize_runs_and_is_what_programs_import(interpreter: str, run: Run, tmp_path: Path) -> None:
    """The user's (or the distribution's) sitecustomize is in sys.modules as if we were not there."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("import sys\nsys.seen = __name__\nVALUE = 42\n")
    program = "import sys, sitecustomize\nprint(sys.seen, sitecustomize.VALUE, sitecustomize.__file__)"
    done = run(interpreter, program, theirs)

    assert done.stdout == f"sitecustomize 42 {theirs / 'sitecustomize.py'}\n"


@pytest.mark.parametrize("python", interpreters(OLDER), ids=lambda path: Path(path).parent.parent.name)
def test_an_older_python_says_what_it_says_without_us(
    python: str, run: Run, agent_directory: Path, hook_api: Path
) -> None:
    """A job may call a program of Python 2: a line of ours in what that one prints could be taken for its answer."""
    program = "import torch\ntorch.optim.SGD().step()\nprint('answer')\n1 / 0\n"
    plain = run(python, program, hook_api, armed=False)
    done = run(python, program, hook_api)

    assert (done.returncode, done.stdout, done.stderr) == (plain.returncode, plain.stdout, plain.stderr)
    assert list(agent_directory.iterdir()) == []


def test_error_in_the_shadowed_sitecustomize_is_reported_as_ever(interpreter: str, run: Run, tmp_path: Path) -> None:
    """What Python says about a broken sitecustomize, it still says."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("raise RuntimeError('broken')\n")
    plain = run(interpreter, "print('goes on')", theirs, armed=False)
    done = run(interpreter, "print('goes on')", theirs)

    assert (done.returncode, done.stdout, done.stderr) == (plain.returncode, plain.stdout, plain.stderr)


def test_without_its_variable_it_does_nothing(interpreter: str, run: Run, hook_api: Path, tmp_path: Path) -> None:
    """PYTHONPATH that outlives the run (a container image, a saved environment) is harmless."""
    done = run(
        interpreter,
        STEPS.format(steps=1) + "import sys; print(hasattr(sys, '_perfwatch_armed'))",
        AGENT_FOLDER,
        hook_api,
        armed=False,
    )

    assert (done.returncode, done.stdout) == (0, "False\n")


def test_tracer_is_declared_without_a_trace(interpreter: str, run: Run) -> None:
    """Where Yama restricts ptrace a process and its forks declare perfwatch; without Yama nothing happens."""
    program = (
        "import os, sys\n"
        "print('ctypes' in sys.modules, flush=True)\n"
        "pid = os.fork()\n"
        "if pid: print(os.waitpid(pid, 0)[1])\n"
    )
    done = run(interpreter, program, tracer=os.getpid())

    assert (done.stdout, done.stderr) == ("True\n0\n", "")


ARMED = "os.environ['PERFWATCH_KERNEL_WINDOW'] = '1'"
CARD = (
    "import os, types\n"
    "{first}\n"
    "import torch\n"
    "said = []\n"
    "runtime = types.SimpleNamespace(cudaProfilerStart=lambda: said.append('open'), cudaProfilerStop=lambda: said.append('shut'))\n"
    "torch.cuda = types.SimpleNamespace(cudart=lambda: {runtime})\n"
    "optimizer = torch.optim.SGD()\n"
    "door = os.path.join(os.environ['PERFWATCH_AGENT_DIR'], 'kernels-%d' % os.getpid())\n"
    "optimizer.step()\n"
    "open(door, 'w').close()\n"
    "for _ in range(3): optimizer.step()\n"
    "os.unlink(door)\n"
    "for _ in range(3): optimizer.step()\n"
    "print(said)\n"
)


def test_a_kernel_window_is_opened_and_closed_once_between_steps(interpreter: str, run: Run, hook_api: Path) -> None:
    """When its file appears and when it goes, under ``run --arm ncu`` alone."""
    assert run(interpreter, CARD.format(first="", runtime="runtime"), hook_api).stdout == "[]\n"
    assert run(interpreter, CARD.format(first=ARMED, runtime="runtime"), hook_api).stdout == "['open', 'shut']\n"


def test_a_kernel_window_that_cannot_be_opened_is_not_noticed(
    interpreter: str, run: Run, agent_directory: Path, hook_api: Path
) -> None:
    """No GPU, or a torch that has no such call: steps are counted, nothing is said."""
    done = run(interpreter, CARD.format(first=ARMED, runtime="1 / 0"), hook_api)

    assert (done.stdout, done.stderr) == ("[]\n", "")
    assert list(counts(agent_directory).values()) == [7]


def test_exit_waits_for_the_end_of_a_window(run: Run, interpreter: str, hook_api: Path, agent_directory: Path) -> None:
    """Torn down while it records, a profiler may crash its process: the file's removal says that it rests."""
    program = (
        "import os, subprocess, sys, time, torch\n"
        "path = os.path.join(os.environ['PERFWATCH_AGENT_DIR'], 'window-%d' % os.getpid())\n"
        "open(path, 'w').write('%.3f' % (time.monotonic() + 30))\n"
        "subprocess.Popen(['sh', '-c', 'sleep 0.3; rm ' + path])\n"
        "print(time.monotonic(), flush=True)\n"
    )
    done = run(interpreter, program, hook_api)

    assert done.returncode == 0
    assert list(agent_directory.glob("window-*")) == []


def test_exit_does_not_wait_for_a_capture_that_is_gone(
    run: Run, interpreter: str, hook_api: Path, agent_directory: Path
) -> None:
    """The time in the file has passed, or it is nonsense: nothing is waited for, and nothing is said."""
    for content in ("0.5", "nonsense", ""):
        program = (
            "import os, torch\n"
            "path = os.path.join(os.environ['PERFWATCH_AGENT_DIR'], 'window-%d' % os.getpid())\n"
            f"open(path, 'w').write({content!r})\n"
        )
        done = run(interpreter, program, hook_api)

        assert (done.returncode, done.stderr) == (0, "")
    assert len(list(agent_directory.glob("window-*"))) == 3
