"""What every Python thread of a process executes right now, by ``py-spy dump --nonblocking``; nothing is stopped.

How to read it: ``Stacks.dump`` asks py-spy about each process (one call per process, four at once, one deadline for
all) and answers with readings only: a ``Stack`` per thread; a ``StackFailure`` where the stack moved while it was read,
twice in a row (it runs: that is why it could not be read); a ``ProbeCall`` with reason and advice where nothing could be
read. A nonblocking stack can be torn (frames of two moments in one stack): never conclude from one.

Measured on a PyTorch training loop (2 cores, py-spy 0.4.3): 14-16 ms a dump, 14 ms of CPU, no pause, same step rate.
"""

import itertools
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from perfwatch_probes.bounds import MOST_STACKED_THREADS
from perfwatch_probes.external import LEFT_BEHIND, Finished, Runner, run_together
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.ptrace_access import access, explain
from perfwatch_probes.readings import Frame, ProbeCall, Reading, Stack, StackFailure
from perfwatch_probes.stat import stat_fields
from perfwatch_probes.thread_ids import ThreadIds

MISSING_ADVICE = "pip install 'py-spy>=0.4'"
# What py-spy says when memory changed under it. Seen: Failed to copy PyCodeObject / PyFrameObject / PyThreadState.
_MOVED = re.compile(r"Failed to (copy|get|merge|decode)|Bad address|Max recursion|not valid utf|Invalid argument", re.I)
_LIBRARY = re.compile(r"/(site|dist)-packages/|\.whl/|/lib/python\d[\d.]*/|^<|^$")
_NEVER_A_PROGRAM = re.compile(r"(-packages|\.whl)/torch/|/lib/python\d[\d.]*/(?!(?:site|dist)-packages/)|^<|^$")
_SECRET_NAME = re.compile(r"pass|secret|token|key|auth|cred", re.I)
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_PATH_LIKE = re.compile(r"/|\.[A-Za-z][A-Za-z0-9]{0,7}$")
_LONGEST_TEXT = 200
_LONGEST_WORD = 64
_MOST_TEXTS = 8
# Beside other work on two cores: 4,000 threads 5.5 s, of which 2.7 s are CPU time; it grows with their square.
_SECONDS_PER_THREAD, _LONGEST_MORE_SECONDS = 0.001, 8.0
_THREADS_INDEX = 17  # of ``stat_fields``: num_threads
_MOST_CALLERS = 3  # frames of the program whose variables are looked at, the innermost included


def find_py_spy(executable: str = sys.executable, environ: Mapping[str, str] = os.environ) -> str | None:
    """The py-spy that $PERFWATCH_PY_SPY names (one with capabilities, say), else our environment's, else PATH's."""
    if environ.get("PERFWATCH_PY_SPY"):
        return os.path.abspath(environ["PERFWATCH_PY_SPY"])
    beside = os.path.join(os.path.dirname(executable), "py-spy")
    return beside if os.access(beside, os.X_OK) else shutil.which("py-spy")


class Stacks:
    """py-spy, asked politely.

    Args:
        command: path of py-spy; found next to our interpreter or on PATH when None.
        runner: runs the commands under a deadline (tests give their own).
        redact: takes secrets out of a text; without it ``texts=True`` collects nothing.
        proc: root of /proc, for the advice on a refusal.

    Attributes:
        thread_ids: translates py-spy's names of threads.
        calls: how many py-spy processes were started so far.
        cpu_seconds: what they used.
    """

    NAME = "stacks"
    NEEDS = "py-spy 0.4 or newer; the same user with kernel.yama.ptrace_scope 0 or `perfwatch run`, else CAP_SYS_PTRACE"
    COST = "about 15 ms of CPU per process and dump; the target is not paused"

    def __init__(
        self,
        command: str | None = None,
        runner: Runner = run_together,
        redact: Callable[[str], str] | None = None,
        proc: Path = Path("/proc"),
    ) -> None:
        self.command = command or find_py_spy()
        self._run = runner
        self._redact = redact
        self._proc = proc
        self.thread_ids = ThreadIds(proc)
        self.calls = 0
        self.cpu_seconds = 0.0

    def look(self, pids: Sequence[int] = ()) -> list[Reading]:
        """``dump`` with its defaults."""
        return self.dump(pids)

    def dump(
        self,
        pids: Sequence[int],
        deadline_seconds: float = 2.0,
        texts: bool = False,
        answers: dict[int, bytes] | None = None,
    ) -> list[Reading]:
        """Dump the Python stacks of these processes, at most four at once.

        Args:
            pids: processes, as we see them.
            deadline_seconds: for all of them together, and more where threads are many; what is late is killed and recorded
                as unavailable.
            texts: also collect path-like and short string locals of the innermost user frame, redacted.
            answers: is given py-spy's own JSON of each process that could be read, with all locals, not redacted.

        Returns: Stack, StackFailure and ProbeCall(outcome="unavailable", entity="pid N") readings; never raises.
        """
        began = time.monotonic()
        counts = {pid: self._threads(pid) for pid in pids}
        deadline_seconds += min(_LONGEST_MORE_SECONDS, _SECONDS_PER_THREAD * sum(counts.values()))
        refused = {pid: why for pid in pids if (why := self._refusal(pid, counts[pid])) is not None}
        readings: list[Reading] = [_unavailable(pid, 0.0, why) for pid, why in refused.items()]
        pids = [pid for pid in pids if pid not in refused]
        again: list[int] = []
        with_locals = texts or answers is not None
        for pid, finished in self._dumps(pids, deadline_seconds, with_locals):
            answer = self._interpret(pid, finished, texts)
            _keep(answers, pid, finished)
            if isinstance(answer, StackFailure):
                again.append(pid)
            else:
                readings += answer
        left = deadline_seconds - (time.monotonic() - began)
        for pid, finished in self._dumps(again, max(left, 0.1), with_locals):
            answer = self._interpret(pid, finished, texts)
            _keep(answers, pid, finished)
            readings += [answer] if isinstance(answer, StackFailure) else answer
        return readings

    def refuse(self, pid: int) -> None:
        """Raise Unavailable for a process that py-spy is not to read: it has too many threads, or would not let go of it."""
        if (why := self._refusal(pid, self._threads(pid))) is not None:
            raise why

    def _refusal(self, pid: int, threads: int) -> Unavailable | None:
        try:
            LEFT_BEHIND.refuse(pid)
        except Unavailable as why:
            return why
        return _crowd(pid, threads) if threads > MOST_STACKED_THREADS else None

    def _threads(self, pid: int) -> int:
        try:
            return int(stat_fields(self._proc / str(pid))[_THREADS_INDEX])
        except (OSError, IndexError, ValueError):
            return 0

    def _dumps(
        self, pids: Sequence[int], deadline_seconds: float, with_locals: bool
    ) -> Iterator[tuple[int, Finished | None]]:
        if self.command is None:
            yield from ((pid, None) for pid in pids)
            return
        options = ["dump", "--nonblocking", "--json", *(["--locals"] if with_locals else []), "--pid"]
        finished = self._run([[self.command, *options, str(pid)] for pid in pids], deadline_seconds) if pids else []
        self.calls += sum(one.started for one in finished)
        self.cpu_seconds += sum(one.cpu_seconds for one in finished)
        for pid, one in zip(pids, finished, strict=True):
            if one.left_behind is not None:
                LEFT_BEHIND.add(one.left_behind, pid)
        yield from zip(pids, finished, strict=True)

    def _interpret(self, pid: int, finished: Finished | None, texts: bool) -> list[Reading] | StackFailure:
        if finished is None:
            return [_unavailable(pid, 0.0, Unavailable("py-spy is not installed", MISSING_ADVICE))]
        if finished.returncode == 0:
            try:
                stacks = list(parse_dump(pid, finished.output, self._redact if texts else None))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                message = f"unreadable answer of py-spy: {error}"
                if isinstance(error, json.JSONDecodeError) and finished.output.startswith(
                    b"["
                ):  # it ends in the middle
                    return StackFailure(pid=pid, message=message)
                return [_unavailable(pid, finished.duration_seconds, Unavailable(message, MISSING_ADVICE))]
            tids = self.thread_ids.resolve(pid, [stack.tid for stack in stacks])
            return [msgspec.structs.replace(stack, tid=tids[stack.tid]) for stack in stacks]
        problem = self.failure(pid, finished)
        if isinstance(problem, StackFailure):
            return problem
        return [_unavailable(pid, finished.duration_seconds, problem)]

    def failure(self, pid: int, finished: Finished) -> Unavailable | StackFailure:
        """What a failed py-spy meant (its exit code is 1 for everything, so the text decides)."""
        text = finished.errors
        if not finished.started:
            return Unavailable("no time was left for py-spy: the dumps before this one used up the deadline")
        if finished.returncode is None:
            return Unavailable(
                f"py-spy gave no answer within {finished.duration_seconds:.1f} s and was killed",
                f"look at the process itself: cat {self._proc}/{pid}/status",
            )
        if finished.returncode == 127:
            return Unavailable(text or "py-spy could not be started", MISSING_ADVICE)
        if "--nonblocking" in text and ("unexpected" in text or "wasn't expected" in text):
            return Unavailable("this py-spy is too old: it has no --nonblocking", "pip install --upgrade 'py-spy>=0.4'")
        if re.search(r"permission denied|operation not permitted|SYS_PTRACE", text, re.I):
            return explain(pid, access(pid, self._proc))
        if "os error 2" in text or "os error 3" in text or "No such process" in text:
            return Unavailable(f"pid {pid} is no more")
        if "Failed to find python version" in text:
            return Unavailable(
                f"pid {pid} is not a Python process, or its CPython is newer than this py-spy knows",
                "pip install --upgrade py-spy",
            )
        if "Failed to find a python interpreter" in text or "interpreter address" in text:
            return Unavailable(f"the interpreter of pid {pid} is starting or ending")
        message = " ".join(text.partition("Stack backtrace:")[0].split())[:_LONGEST_TEXT]
        if _MOVED.search(text):
            return StackFailure(pid=pid, message=message)
        return Unavailable(f"py-spy failed on pid {pid}: {message or 'no reason given'}")


def parse_dump(pid: int, text: bytes, redact: Callable[[str], str] | None = None) -> Iterator[Stack]:
    """Stacks in the JSON of ``py-spy dump --json``, innermost frame first. Raises ValueError or KeyError on other text.

    Where py-spy does not know the thread id (Python before 3.11), ``tid`` is the pthread handle: see ``thread_ids``.

    Args:
        pid: the process as we see it (py-spy's own "pid" is the same).
        text: py-spy's standard output.
        redact: collect string locals (needs ``--locals``), each passed through this; None: collect none.
    """
    for thread in json.loads(text):
        frames = thread["frames"]
        texts = _texts(frames, redact) if redact else {}
        yield Stack(
            pid=pid,
            tid=thread["os_thread_id"] or thread["thread_id"],
            thread=thread["thread_name"] or "",
            frames=tuple(Frame(frame["name"], frame["filename"], frame["line"]) for frame in frames),
            owns_gil=thread["owns_gil"],
            texts=tuple(texts),
            text_names=tuple(texts.values()),
        )


def _texts(frames: list[dict[str, Any]], redact: Callable[[str], str]) -> dict[str, str]:
    """Strings that may name what the thread works on, and the variable of each.

    They are of the innermost frame that is not a library's, or else of its callers.

    A program that is itself installed as a package has no frames but those of packages. A lock's ``__enter__`` has nothing
    but ``self``, of which py-spy tells no attributes.
    """
    own = [frame for frame in frames if not _LIBRARY.search(frame["filename"])]
    own = own or [frame for frame in frames if not _NEVER_A_PROGRAM.search(frame["filename"])]
    return next((found for frame in own[:_MOST_CALLERS] if (found := _texts_of(frame, redact))), {})


def _texts_of(frame: dict[str, Any], redact: Callable[[str], str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for local in frame.get("locals") or ():
        if _SECRET_NAME.search(local["name"]):
            continue
        for raw in _QUOTED.findall(local["repr"] or ""):
            short_word = 0 < len(raw) <= _LONGEST_WORD and raw.isprintable() and " " not in raw
            if len(raw) <= _LONGEST_TEXT and (short_word or _PATH_LIKE.search(raw)):
                found.setdefault(redact(raw), local["name"])
    return dict(itertools.islice(found.items(), _MOST_TEXTS))


def left_traced(pid: int, proc: Path = Path("/proc")) -> list[str]:
    """Marks that an observer left on a process: a tracer, or threads that are stopped. For tests; empty is right."""
    marks = []
    for task in sorted((proc / str(pid) / "task").iterdir()):
        fields = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines() if ":" in line)
        state, tracer = fields["State"].strip(), int(fields["TracerPid"])
        if tracer or state[0] in "tT":
            marks.append(f"thread {task.name}: state {state}, tracer {tracer}")
    return marks


def _keep(answers: dict[int, bytes] | None, pid: int, finished: Finished | None) -> None:
    if answers is not None and finished is not None and finished.returncode == 0:
        answers[pid] = finished.output


def _crowd(pid: int, threads: int) -> Unavailable:
    return Unavailable(
        f"py-spy reads no process with more than {MOST_STACKED_THREADS:,} threads, and pid {pid} has {threads:,}",
        "start fewer threads in it: what its main thread waits for is seen without py-spy",
    )


def _unavailable(pid: int, duration_seconds: float, why: Unavailable) -> ProbeCall:
    return ProbeCall(
        probe=Stacks.NAME,
        entity=f"pid {pid}",
        duration_seconds=duration_seconds,
        outcome="unavailable",
        reason=why.reason,
        advice=why.advice,
    )
