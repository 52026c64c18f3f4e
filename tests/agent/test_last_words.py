"""The agent keeps the words of a crash, and a program ends and says what it would without it."""

import signal
from pathlib import Path

import pytest

from tests.agent.conftest import Run

pytestmark = pytest.mark.live


def test_traceback_on_stderr_is_unchanged_and_kept(
    interpreter: str, run: Run, agent_directory: Path, hook_api: Path
) -> None:
    """The crash reads as without us, byte for byte, and its text is in crash-PID.txt."""
    program = "import torch\ndef train():\n    raise ValueError('loss is nan')\ntrain()\n"
    plain = run(interpreter, program, hook_api, armed=False)
    done = run(interpreter, program, hook_api)
    (crash,) = agent_directory.glob("crash-*.txt")

    assert (done.returncode, done.stderr) == (1, plain.stderr)
    assert crash.read_text() == plain.stderr
    assert crash.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("armed", [True, False])
def test_a_program_that_ctrl_c_ends_is_ended_by_that_signal(
    interpreter: str, run: Run, hook_api: Path, armed: bool
) -> None:
    """As without us: shells and schedulers look at how it ended. Its traceback has lines of source."""
    (hook_api / "waits.py").write_text("import os, signal, torch\ndef main(): os.kill(os.getpid(), signal.SIGINT)\n")
    done = run(interpreter, "import waits\nwaits.main()\n", hook_api, armed=armed)

    assert done.returncode == -signal.SIGINT


def test_crash_text_is_bounded_and_keeps_its_end(
    interpreter: str, run: Run, agent_directory: Path, hook_api: Path
) -> None:
    """16 KiB at most; the exception itself stands at the end."""
    run(interpreter, "import torch\nraise ValueError('x' * 100_000 + ' the end')", hook_api)
    (crash,) = agent_directory.glob("crash-*.txt")

    assert crash.stat().st_size == 16 * 1024
    assert crash.read_text().endswith("the end\n")


def test_error_that_ends_a_thread_is_kept_and_reads_as_without_us(
    interpreter: str, run: Run, agent_directory: Path, hook_api: Path
) -> None:
    """The program goes on: it is no crash."""
    program = (
        "import torch, threading\ndef produce():\n    raise ValueError('bad shard')\n"
        "one = threading.Thread(target=produce, name='producer')\none.start()\none.join()\nprint('goes on')\n"
    )
    plain = run(interpreter, program, hook_api, armed=False)
    done = run(interpreter, program, hook_api)
    (kept,) = agent_directory.glob("*.txt")

    assert (done.returncode, done.stdout, done.stderr) == (0, "goes on\n", plain.stderr)
    assert kept.name.startswith("thread-")
    assert kept.read_text().endswith("ValueError: bad shard\n")
    assert kept.stat().st_mode & 0o777 == 0o600


def test_a_signal_that_interrupts_the_keeping_of_words_loses_none(
    interpreter: str, run: Run, agent_directory: Path, hook_api: Path
) -> None:
    """A handler that raises meanwhile, as torch's does when a data worker has ended: what it raised and the crash are both kept."""
    program = """
import os, signal, sys, torch
def told(*_):
    raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Segmentation fault.")
signal.signal(signal.SIGUSR1, told)
def interrupt(event, arguments):
    if event == "open" and "crash-" in str(arguments[0]) and signal.getsignal(signal.SIGUSR2) != signal.SIG_IGN:
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        signal.raise_signal(signal.SIGUSR1)
sys.addaudithook(interrupt)
raise ConnectionResetError(104, "Connection reset by peer")
"""
    done = run(interpreter, program, hook_api)
    (crash,) = agent_directory.glob("crash-*.txt")
    kept = crash.read_text().splitlines()

    assert kept[0] == "RuntimeError: DataLoader worker (pid 7) is killed by signal: Segmentation fault."
    assert kept[-1] == done.stderr.splitlines()[-1] == "ConnectionResetError: [Errno 104] Connection reset by peer"


def test_thread_that_asks_to_end_leaves_no_error(
    interpreter: str, run: Run, agent_directory: Path, hook_api: Path
) -> None:
    """SystemExit ends a thread in silence."""
    run(
        interpreter,
        "import torch, sys, threading\none = threading.Thread(target=sys.exit)\none.start()\none.join()",
        hook_api,
    )

    assert list(agent_directory.glob("*.txt")) == []


def test_excepthook_that_was_set_before_is_called(interpreter: str, run: Run, hook_api: Path) -> None:
    """A hook of the user runs as it would without us."""
    program = "import sys\nsys.excepthook = lambda *_: print('mine')\nimport torch\n1 / 0\n"

    assert run(interpreter, program, hook_api).stdout == "mine\n"


WAYS = {
    "a hook that was set after torch was imported": "import torch, sys\nsys.excepthook = lambda *_: print('mine')\n"
    "raise ValueError('bad batch')\n",
    "a hook that ends the program": (
        "import sys, os\nsys.excepthook = lambda *_: os._exit(3)\nimport torch\nraise ValueError('bad batch')\n"
    ),
    "a child of multiprocessing": (
        "import torch, multiprocessing\ndef work():\n    raise ValueError('bad batch')\n"
        "one = multiprocessing.get_context('fork').Process(target=work)\none.start()\none.join()\nraise SystemExit(one.exitcode)\n"
    ),
    "a child that imports torch late": (
        "import multiprocessing\ndef work():\n    import torch\n    raise ValueError('bad batch')\n"
        "one = multiprocessing.get_context('fork').Process(target=work)\none.start()\none.join()\nraise SystemExit(one.exitcode)\n"
    ),
}


@pytest.mark.parametrize("program", WAYS.values(), ids=WAYS.keys())
def test_however_an_error_ends_a_process_it_is_kept(
    interpreter: str, run: Run, agent_directory: Path, hook_api: Path, program: str
) -> None:
    """And the program ends and says what it would without us."""
    plain = run(interpreter, program, hook_api, armed=False)
    done = run(interpreter, program, hook_api)
    (crash,) = agent_directory.glob("crash-*.txt")

    assert (done.returncode, done.stdout, done.stderr) == (plain.returncode, plain.stdout, plain.stderr)
    assert crash.read_text().endswith("ValueError: bad batch\n")


def test_a_program_that_has_all_its_files_open_leaves_its_words(
    interpreter: str, run: Run, agent_directory: Path, hook_api: Path
) -> None:
    """No other file can be opened under its limit, which is as before when its own hook runs."""
    program = """
import os, resource, sys
LIMITS = 32, 64
sys.excepthook = lambda *_: print(resource.getrlimit(resource.RLIMIT_NOFILE) == LIMITS)
import torch
resource.setrlimit(resource.RLIMIT_NOFILE, LIMITS)
opened = []
while True:
    opened.append(os.dup(1))
"""
    done = run(interpreter, program, hook_api)
    (crash,) = agent_directory.glob("crash-*.txt")

    assert done.stdout == "True\n"
    assert crash.read_text().endswith("OSError: [Errno 24] Too many open files\n")


UNSEEN = {
    "what ends a process is pickled": (
        "from sys import exit\nfrom traceback import print_exc\nimport torch, os, pickle, sys, traceback\n"
        "print([pickle.loads(pickle.dumps(one)) is one for one in (exit, print_exc, os._exit, sys.exit, traceback.print_exc)])\n"
    ),
    "a traceback of an exit": (
        "import torch, sys, traceback\n"
        "for end in (sys.exit, exit):\n    try: end(3)\n    except SystemExit: traceback.print_exc()\n"
    ),
    "an exit at the limit of recursion": (
        "import torch, sys\ndef at(depth):\n    if depth == 0: sys.exit(3)\n    at(depth - 1)\n"
        "for depth in range(900, 1001):\n    try: at(depth)\n    except SystemExit: pass\n"
        "    except RecursionError: sys.exit(depth % 100)\n"
    ),
    "an exit under sys.settrace": (
        "import torch, sys\nseen = []\n"
        "def main():\n    sys.settrace(lambda frame, *_: seen.append(frame.f_code.co_name))\n"
        "    try: sys.exit(3)\n    except SystemExit: pass\n"
        "    sys.settrace(None)\nmain()\nprint(seen)\n"
    ),
    "a hook that fails": "import sys\nsys.excepthook = lambda *_: 1 / 0\nimport torch\nraise ValueError('bad batch')\n",
    "a hook of threads that fails": (
        "import sys, threading\nthreading.excepthook = lambda _: 1 / 0\nimport torch\n"
        "one = threading.Thread(target=sys._getframe, args=(10**6,))\none.start()\none.join()\n"
    ),
    "a hook is pickled and copied": (
        "import torch, copy, pickle, sys, threading\n"
        "for one in (sys.excepthook, threading.excepthook):\n    print(pickle.loads(pickle.dumps(one)) is one, copy.deepcopy(one) is one)\n"
        "print(sys.excepthook.__module__, sys.excepthook.__doc__)\n"
    ),
    "a library that asks for the hook": (
        "import torch, inspect, sys\n"
        "print(sys.excepthook is sys.__excepthook__, sys.excepthook.__name__, inspect.signature(sys.excepthook))\n"
    ),
    "a hook that is taken back": (
        "import torch, sys\nbefore, sys.excepthook = sys.excepthook, print\nimport colorsys\ntorch.optim.SGD().step()\n"
        "if sys.excepthook is print: sys.excepthook = before\n1 / 0\n"
    ),
    "files that may not grow": (
        "import torch, resource, signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\ntorch.optim.SGD().step()\nraise ValueError('bad batch')\n"
    ),
}


@pytest.mark.parametrize("program", UNSEEN.values(), ids=UNSEEN.keys())
def test_a_program_cannot_tell_that_its_words_are_kept(
    interpreter: str, run: Run, hook_api: Path, program: str
) -> None:
    """It prints the same bytes and ends with the same code."""
    plain = run(interpreter, program, hook_api, armed=False)
    done = run(interpreter, program, hook_api)

    assert (done.returncode, done.stdout, done.stderr) == (plain.returncode, plain.stdout, plain.stderr)


LEAVES = {
    "os._exit": "import torch, os\n{error}\ntry: raise Waits()\nexcept Waits: os._exit(3)\n",
    "sys.exit": "import torch, sys\n{error}\ntry: raise Waits()\nexcept Waits: sys.exit(3)\n",
}
WAITS = "class Waits(Exception):\n    def __str__(self): __import__('threading').Event().wait(100)\n"


@pytest.mark.parametrize("program", LEAVES.values(), ids=LEAVES.keys())
def test_a_program_that_ends_itself_is_not_kept_by_us(
    interpreter: str, run: Run, agent_directory: Path, hook_api: Path, program: str
) -> None:
    """Nothing is asked of an error that it handles, whose words may wait for a lock that no thread opens."""
    assert run(interpreter, program.format(error=WAITS), hook_api).returncode == 3
    assert list(agent_directory.glob("*.txt")) == []


def test_hooks_that_are_set_again_and_again_run_as_often_as_without_us(
    interpreter: str, run: Run, hook_api: Path
) -> None:
    """Each of them once."""
    program = """
import torch, sys
def add(previous):
    def hook(*error):
        print("mine")
        previous(*error)
    sys.excepthook = hook
for number in range(8):
    add(sys.excepthook)
    try:
        __import__(f"no_such_module_{number}")
    except ImportError:
        pass
raise ValueError("bad batch")
"""
    plain = run(interpreter, program, hook_api, armed=False)

    assert run(interpreter, program, hook_api).stdout == plain.stdout == "mine\n" * 8
