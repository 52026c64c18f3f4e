"""Python stacks by py-spy: what its answers and its failures become."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from perfwatch_probes.external import Finished
from perfwatch_probes.readings import Frame, ProbeCall, Reading, Stack, StackFailure
from perfwatch_probes.stacks import Stacks, find_py_spy, left_traced, parse_dump

MOVED = "Error: Failed to copy PyCodeObject\n\nStack backtrace:\n   0: anyhow"
GONE = (
    "Error: Failed to get process executable name. Check that the process is running.\n\n"
    "Caused by:\n    0: No such file or directory (os error 2)\n"
)
DENIED_ROOT = GONE.replace("No such file or directory (os error 2)", "Permission denied (os error 13)")
DENIED_USER = "Permission Denied: Try running again with elevated permissions by going 'sudo env \"PATH=$PATH\" !!'"
NOT_PYTHON = "Error: Failed to find python version from target process\n"
TOO_OLD = "error: unexpected argument '--nonblocking' found\n\nUsage: py-spy dump\n"


def frame(name: str, filename: str, line: int, **local_values: str) -> dict[str, object]:
    """A frame as py-spy 0.4 writes it."""
    found = [{"name": name, "addr": 1, "arg": False, "repr": text} for name, text in local_values.items()]
    return {"name": name, "filename": filename, "line": line, "locals": found or None, "module": None}


def thread(*frames: dict[str, object], tid: int | None = 7, name: str | None = "MainThread") -> dict[str, object]:
    """A thread as py-spy 0.4 writes it."""
    return {"pid": 7, "thread_id": 99, "thread_name": name, "os_thread_id": tid, "owns_gil": True, "frames": frames}


def answering(*answers: Finished) -> tuple[Callable[[Sequence[Sequence[str]], float], list[Finished]], list[list[str]]]:
    """A runner that gives these answers, one per command, and the commands that it was given."""
    waiting, seen = list(answers), list[list[str]]()

    def run(commands: Sequence[Sequence[str]], deadline_seconds: float) -> list[Finished]:
        seen.extend(list(command) for command in commands)
        return [waiting.pop(0) for _ in commands]

    return run, seen


def failed(errors: str, returncode: int | None = 1, started: bool = True) -> Finished:
    """py-spy that ended badly; its output may hold a heading nevertheless."""
    return Finished(returncode, b"Process 7: python train.py\n", errors, 0.01, 0.01, started)


def answered(*threads: dict[str, object]) -> Finished:
    """py-spy that ended well."""
    return Finished(0, json.dumps(threads).encode(), "", 0.01, 0.01)


def look(*answers: Finished, pids: Sequence[int] = (7,), **options: object) -> list[Reading]:
    """Dump with these answers of py-spy."""
    return Stacks("py-spy", answering(*answers)[0], proc=Path("/nowhere"), **options).dump(pids)  # type: ignore[arg-type]


def test_each_thread_becomes_a_stack_innermost_frame_first() -> None:
    """Names, files, lines, thread and GIL come from the JSON."""
    [stack] = look(answered(thread(frame("get", "/q.py", 3), frame("main", "/t.py", 9))))

    assert stack == Stack(
        pid=7, tid=7, thread="MainThread", frames=(Frame("get", "/q.py", 3), Frame("main", "/t.py", 9)), owns_gil=True
    )


@pytest.mark.live
def test_processes_are_asked_one_by_one_and_never_stopped() -> None:
    """Each call is --nonblocking and for one pid: py-spy prints only the parent otherwise."""
    run, commands = answering(answered(), answered())

    Stacks("py-spy", run).dump([7, 8])

    assert commands == [["py-spy", "dump", "--nonblocking", "--json", "--pid", str(pid)] for pid in (7, 8)]


def test_a_stack_that_moved_is_asked_for_once_more() -> None:
    """The second answer is used."""
    [stack] = look(failed(MOVED), answered(thread(frame("f", "/t.py", 1))))

    assert isinstance(stack, Stack)


def test_a_stack_that_moved_twice_is_evidence_of_motion() -> None:
    """It is a StackFailure without py-spy's own backtrace, never a gap."""
    assert look(failed(MOVED), failed(MOVED)) == [StackFailure(pid=7, message="Error: Failed to copy PyCodeObject")]


def test_a_torn_answer_counts_as_motion() -> None:
    """JSON that ends in the middle is not an error of ours."""
    [reading] = look(*[Finished(0, b'[{"pid": 7', "", 0.01)] * 2)

    assert isinstance(reading, StackFailure)


@pytest.mark.parametrize(
    ("finished", "reason", "advice"),
    [
        (failed(GONE), "pid 7 is no more", ""),
        (failed(NOT_PYTHON), "not a Python process", ""),
        (failed(DENIED_ROOT), "memory of pid 7 is denied", " "),
        (failed(DENIED_USER), "memory of pid 7 is denied", " "),
        (failed(TOO_OLD, 2), "too old", "pip install --upgrade 'py-spy>=0.4'"),
        (failed("", None), "killed", "status"),
        (failed("", None, started=False), "no time was left", ""),
        (failed("py-spy could not be started: x", 127), "could not be started", "pip install"),
        (Finished(0, b"no JSON", "", 0.01), "unreadable answer of py-spy", "pip install"),
        (Finished(0, b"", "", 0.01), "unreadable answer of py-spy", "pip install"),
        (Finished(0, b'[{"pid": 7}]', "", 0.01), "unreadable answer of py-spy", "pip install"),
        (failed("something new"), "py-spy failed on pid 7: something new", ""),
    ],
)
def test_what_cannot_be_read_says_why_and_what_would_help(finished: Finished, reason: str, advice: str) -> None:
    """The exit code is 1 for everything: the text decides, and output before the failure is not believed."""
    [call] = look(finished)

    assert isinstance(call, ProbeCall)
    assert (call.entity, call.outcome) == ("pid 7", "unavailable")
    assert reason in call.reason
    assert advice in call.advice


@pytest.mark.live
def test_without_py_spy_every_process_is_unavailable(tmp_path: Path) -> None:
    """The advice is the command that installs it."""
    stacks = Stacks("py-spy", answering()[0])
    stacks.command = None

    [call] = stacks.dump([7])

    assert isinstance(call, ProbeCall)
    assert call.advice == "pip install 'py-spy>=0.4'"


def test_the_py_spy_of_our_own_environment_comes_first(tmp_path: Path) -> None:
    """Next to our interpreter, so that PATH does not matter."""
    (tmp_path / "py-spy").touch(mode=0o755)

    assert find_py_spy(str(tmp_path / "python")) == str(tmp_path / "py-spy")


def test_texts_are_path_like_strings_of_the_innermost_user_frame_redacted() -> None:
    """Secrets by name, long prose, numbers and library frames are left out; the rest passes through redaction."""
    library = frame("get", "/venv/lib/python3.11/site-packages/requests/api.py", 3, inner='"/not/this"')
    own = frame(
        "__getitem__",
        "/home/u/train.py",
        9,
        path='"/data/shard-7.tar"',
        names='["a.idx", "b.idx"]',
        api_token='"hf_x"',
        prose='"this is a long sentence without a meaning"',
        count="5",
    )
    text = json.dumps([thread(library, own)]).encode()

    [stack] = parse_dump(7, text, redact=lambda found: found.replace("shard-7", "X"))

    assert stack.texts == ("/data/X.tar", "a.idx", "b.idx")
    assert stack.text_names == ("path", "names", "names")


def test_texts_of_the_caller_stand_in_where_the_innermost_frame_has_none() -> None:
    """A lock's ``__enter__`` has ``self`` alone; what it locks is in the frame around it."""
    enter = frame("Lock.__enter__", "/home/u/locks.py", 9, self="<Lock at 0x7f>")
    caller = frame("load", "/home/u/train.py", 30, sensor='"s0650"')
    outer = frame("main", "/home/u/train.py", 50, out='"/data/out"')
    text = json.dumps([thread(enter, caller, outer)]).encode()

    [stack] = parse_dump(7, text, redact=str)

    assert stack.texts == ("s0650",)


def test_texts_of_a_program_that_is_installed_as_a_package() -> None:
    """Where no frame is of a program in files of its own, those of packages count; torch's and CPython's never do."""
    packages = "/venv/lib/python3.11/site-packages"
    library = frame("get", "/usr/lib/python3.11/socket.py", 3, inner='"/not/this"')
    tensors = frame("load", f"{packages}/torch/serialization.py", 3, inner='"/nor/this"')
    own = frame("read_shard", f"{packages}/tuner/data.py", 9, path='"/data/shard-7.tar"')
    text = json.dumps([thread(library, tensors, own)]).encode()

    [stack] = parse_dump(7, text, redact=str)

    assert stack.texts == ("/data/shard-7.tar",)


@pytest.mark.live
def test_without_redaction_no_text_is_collected() -> None:
    """Private by default."""
    run, _ = answering(answered(thread(frame("f", "/t.py", 1, path='"/data"'))))

    [stack] = Stacks("py-spy", run).dump([7], texts=True)

    assert isinstance(stack, Stack)
    assert stack.texts == ()


@pytest.mark.live
def test_a_living_process_is_read_and_left_as_it_was(start: Callable[[str], int]) -> None:
    """The real py-spy names the lines of two threads, and leaves no tracer and no stopped thread."""
    pid = start(
        "import threading\ndef hold():\n    threading.Event().wait()\n"
        "threading.Thread(target=hold, name='beat', daemon=True).start()\nprint('ready', flush=True)\ninput()"
    )
    stacks = Stacks()

    found = {stack.thread: stack for stack in stacks.dump([pid], 20.0) if isinstance(stack, Stack)}

    assert found["MainThread"].tid == pid
    assert found["MainThread"].frames[-1] == Frame("<module>", "<string>", 6)
    assert found["beat"].frames[0].function.endswith("wait")
    assert "hold" in [one.function for one in found["beat"].frames]
    assert left_traced(pid) == []
    assert stacks.cpu_seconds > 0
