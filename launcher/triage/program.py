"""A program that is installed as a package (``python -m pkg.train``, ``pkg-train``): its code is the program's own, not a library's.

Where a file lies does not tell: the package that the interpreter was started with is the program, if it uses torch. Its
files are marked by a ``/./`` before the package (as rsync marks where a relative path begins): they open as before, and
nothing takes them for a library's.
"""

import re
from collections.abc import Callable
from functools import lru_cache

import msgspec

from perfwatch.probes import readings as r
from perfwatch.triage.frames import is_user, of_torch, own_frames, short_name

_PACKAGE = re.compile(r"^(.*(?:/(?:site|dist)-packages|\.whl)/)([^/]+)")
_COMMAND = re.compile(r"/bin/[^/.]+$")  # what pip makes of an entry point
_RUNNER = re.compile(r"(^|/)runpy\.py$|^<frozen runpy>$")
# They start a program, or are what it is written with: being started with one does not make it the program.
RUNNERS = frozenset(
    "torch accelerate deepspeed lightning pytorch_lightning transformers ray dask distributed horovod joblib loky ipykernel "
    "IPython pytest _pytest debugpy pydevd coverage memory_profiler line_profiler viztracer wandb mlflow triton numpy".split()
)


class Program:
    """The packages of one job that are the program itself, as far as its main threads have told."""

    def __init__(self) -> None:
        self._prefixes: frozenset[str] = frozenset()

    def learns(self, stack: r.Stack, has_torch: Callable[[int], bool]) -> bool:
        """Whether this stack tells of a package that was not known to be the program: what was read before must be marked, too.

        has_torch: by pid, whether the process has torch loaded; a service of a library in the job has not.
        """
        if stack.tid != stack.pid:
            return False
        frames = own_frames(stack)
        new = _started_with(frames) - self._prefixes
        if not new or not (any(map(of_torch, frames)) or has_torch(stack.pid)):
            return False
        self._prefixes |= new
        return True

    def marked(self, reading: r.Reading) -> r.Reading:
        """A stack or a line of source with the program's own files marked; any other reading as it is."""
        if not self._prefixes:
            return reading
        if isinstance(reading, r.Stack):
            frames = _frames(reading.frames, self._prefixes)
            return reading if frames is reading.frames else msgspec.structs.replace(reading, frames=frames)
        if isinstance(reading, r.SourceLine):
            file = _file(reading.file, self._prefixes)
            return reading if file == reading.file else msgspec.structs.replace(reading, file=file)
        return reading


@lru_cache(maxsize=4096)
def _started_with(frames: tuple[r.Frame, ...]) -> frozenset[str]:
    """Folders (or files) of the packages that the interpreter was started with."""
    modules = [place for place, frame in enumerate(frames) if short_name(frame.function) == "<module>"]
    if not modules:
        return frozenset()
    began = modules[-1]
    begins = {place for place in modules if place == began or _RUNNER.search(frames[place + 1].file)}
    if _COMMAND.search(frames[began].file) and began:
        begins.add(began - 1)
    if any(is_user(frame) and not _COMMAND.search(frame.file) for frame in frames[:began]):
        return frozenset()  # a program in files of its own, which a package runs
    found = (_PACKAGE.match(frames[place].file) for place in begins)
    return frozenset(one.group(0) for one in found if one and one.group(2).removesuffix(".py") not in RUNNERS)


@lru_cache(maxsize=4096)
def _frames(frames: tuple[r.Frame, ...], prefixes: frozenset[str]) -> tuple[r.Frame, ...]:
    if not any(_file(frame.file, prefixes) != frame.file for frame in frames):
        return frames
    return tuple(msgspec.structs.replace(frame, file=_file(frame.file, prefixes)) for frame in frames)


@lru_cache(maxsize=8192)
def _file(file: str, prefixes: frozenset[str]) -> str:
    found = _PACKAGE.match(file)
    if found is None or found.group(0) not in prefixes:
        return file
    return f"{found.group(1)}./{file[found.end(1) :]}"
