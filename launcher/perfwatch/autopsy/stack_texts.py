"""Stacks as other tools print them: py-spy dump, pystack, gdb. Innermost frame first; the main thread has the number of its process.

gdb's frames are native. Where python-gdb.py was loaded, a frame of the interpreter shows the Python frame that it runs, and only these are
kept of such a thread.
"""

import re
from collections.abc import Iterator

from perfwatch_probes import readings as r

MOST_FRAMES = 1024
LONGEST_NAME, LONGEST_FILE = 200, 400
_PROCESS = re.compile(r"^\s*Process (\d{1,9}): ")
_THREAD = re.compile(r'^Thread (?:(\d{1,20})|(0x[0-9A-Fa-f]{1,16})) \((?P<states>[^)]*)\)(?:: "(?P<name>.*)")?')
_STACK_FRAME = re.compile(r"^ {2,}(?P<function>.+?) \((?P<file>.+?)(?::(?P<line>\d{1,9}))?\)$")
_PYSTACK_THREAD = re.compile(
    r"^\s*Traceback for thread (\d{1,9}) (?:\((?P<name>[^)]{0,64})\) )?\[(?P<states>[^\]]{0,80})\]"
)
_PYSTACK_PID = re.compile(r"^\s*pid: (\d{1,9}) ppid: ")
_PYSTACK_FRAME = re.compile(
    r'^\s*\((?:Python|C|Rust)\) File "(?P<file>[^"]{0,400})", line (?P<line>\d{1,9}), in (?P<function>\S.{0,199}?)(?: \(.*\))?\s*$'
)
_GDB_THREAD = re.compile(r'^Thread \d{1,9} \((?:Thread 0x[0-9a-f]+ \()?LWP (\d{1,9})\)?\)?(?: "(?P<name>[^"]{0,64})")?')
_GDB_FRAME = re.compile(
    r"^#\d{1,6} +(?:0x[0-9a-f]+ in )?(?P<function>\S[^(]{0,400}?) \(.*?\)"
    r"(?: at (?P<file>[^:\n]{1,400}):(?P<line>\d{1,9})| from (?P<library>\S{1,400}))?\s*$"
)
_GDB_PYTHON = re.compile(
    r"Frame 0x[0-9a-f]+, for file (?P<file>.{1,400}?), line (?P<line>\d{1,9}), in (?P<function>[\w.<>]{1,200})"
)


def parse_stack_text(text: str) -> Iterator[r.Stack]:
    """The threads in the text of ``py-spy dump``, innermost frame first; the main thread has the number of its process."""
    pid = 0
    thread: tuple[int, str, bool] | None = None
    frames: list[r.Frame] = []
    for line in text.splitlines():
        if match := _PROCESS.match(line):
            yield from _made(pid, thread, frames)
            pid, thread, frames = int(match[1]), None, []
        elif match := _THREAD.match(line):
            yield from _made(pid, thread, frames)
            number = int(match[1]) if match[1] else int(match[2], 16) % 2**62
            name = match["name"] or ""
            thread, frames = (pid if name == "MainThread" else number, name, "gil" in match["states"]), []
        elif (match := _STACK_FRAME.match(line)) and len(frames) < MOST_FRAMES:
            frames.append(r.Frame(match["function"][:200], match["file"][:400], int(match["line"] or 0)))
    yield from _made(pid, thread, frames)


def _made(pid: int, thread: tuple[int, str, bool] | None, frames: list[r.Frame]) -> Iterator[r.Stack]:
    if thread is not None:
        tid, name, gil = thread
        yield r.Stack(pid=pid, tid=tid, thread=name, frames=tuple(frames), owns_gil=gil)


def parse_pystack(text: str) -> Iterator[r.Stack]:
    """The threads in the text of ``pystack remote`` or ``pystack core``, which has the innermost frame last."""
    threads: list[tuple[int, str, str, list[r.Frame]]] = []
    pid = 0
    for line in text.splitlines():
        if match := _PYSTACK_PID.match(line):
            pid = int(match[1])
        elif match := _PYSTACK_THREAD.match(line):
            threads.append((int(match[1]), match["name"] or "", match["states"], []))
        elif threads and (match := _PYSTACK_FRAME.match(line)) and len(threads[-1][3]) < MOST_FRAMES:
            threads[-1][3].append(r.Frame(match["function"][:LONGEST_NAME], match["file"], int(match["line"])))
    pid = pid or min((tid for tid, *_ in threads), default=0)  # threads are younger than their process
    for tid, name, states, frames in threads:
        yield r.Stack(pid=pid, tid=tid, thread=name, frames=tuple(reversed(frames)), owns_gil="Has the GIL" in states)


def parse_gdb(text: str) -> Iterator[r.Stack]:
    """The threads in the text of ``thread apply all bt``."""
    threads: list[tuple[int, str, list[r.Frame], list[r.Frame]]] = []
    for line in text.splitlines():
        if match := _GDB_THREAD.match(line):
            threads.append((int(match[1]), match["name"] or "", [], []))
        elif threads and line.startswith("#"):
            _, _, native, python = threads[-1]
            line = line[:4000]
            if (match := _GDB_PYTHON.search(line)) and len(python) < MOST_FRAMES:
                python.append(r.Frame(match["function"], match["file"], int(match["line"])))
            if (match := _GDB_FRAME.match(line)) and len(native) < MOST_FRAMES:
                where = match["file"] or match["library"] or ""
                native.append(r.Frame(match["function"][:LONGEST_NAME], where, int(match["line"] or 0)))
    pid = min((tid for tid, *_ in threads), default=0)
    for tid, name, native, python in threads:
        yield r.Stack(pid=pid, tid=tid, thread=name, frames=tuple(python or native))
