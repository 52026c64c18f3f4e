"""A program that is installed as a package (``python -m pkg.train``, ``pkg-train``): its code is the program's own, not a library's.

Where a file lies does not tell: the package that the interpreter was started with is the program, if it uses torch. Its
files are marked by a ``/./`` before the package (as rsync marks where a relative path begins): they open as before, and
nothing takes them for a library's.
"""

import re
from collections.abc import Callable
from functools import lru_cache

import msgspec

from perfwatch.triage.words.frames import is_user, of_torch, own_frames, short_name
from perfwatch_probes import readings as r

_PACKAGE = re.compile(r"^(.*(?:/(?:site|dist)-packages|\.whl)/)(?:\./)?([^/]+)")
_COMMAND = re.compile(r"/bin/[^/.]+$")  # what pip makes of an entry point
_RUNNER = re.compile(r"(^|/)runpy\.py$|^<frozen runpy>$")
# They start a program, serve one, or are what it is written with: being started with one does not make it the program.
RUNNERS = frozenset(
    "torch accelerate deepspeed lightning lightning_fabric pytorch_lightning composer transformers ray dask distributed "
    "horovod mpi4py submitit torchx determined sagemaker_training joblib loky ipykernel ipykernel_launcher "
    "colab_kernel_launcher IPython nbclient papermill marimo streamlit gradio uvicorn gunicorn vllm sglang celery prefect "
    "dagster airflow metaflow kedro pytest _pytest debugpy pydevd coverage memory_profiler line_profiler viztracer wandb "
    "mlflow triton numpy".split()
)
# An entry point is often theirs: they read the command line and call the program.
PARSERS = frozenset(
    "click rich_click asyncclick cloup typer fire absl hydra tyro jsonargparse cyclopts plac invoke".split()
)


class Program:
    """The packages of one job that are the program itself, as far as its main threads have told."""

    def __init__(self) -> None:
        self._prefixes: frozenset[str] = frozenset()
        self._in_files = False  # a process of the job runs a program in files of its own: packages only start it

    def learns(self, stack: r.Stack, has_torch: Callable[[int], bool]) -> bool:
        """True if this stack changes what is known to be the program: what was read before must be marked anew, too.

        has_torch: by pid, whether the process has torch loaded; a service of a library in the job has not.
        """
        if stack.tid != stack.pid or self._in_files or not stack.frames:
            return False
        frames = own_frames(stack)
        in_files, started_with = _started_with(frames)
        if not in_files and started_with <= self._prefixes:
            return False
        if not any(map(of_torch, frames)) and not has_torch(stack.pid):
            return False
        known, self._in_files = self._prefixes, in_files
        self._prefixes = frozenset() if in_files else self._prefixes | started_with
        return self._prefixes != known

    @property
    def marks(self) -> bool:
        """True if any package is the program."""
        return bool(self._prefixes)

    def marked(self, reading: r.Reading) -> r.Reading:
        """A stack or a line of source with the program's own files marked, and no others; any other reading as it is."""
        if isinstance(reading, r.Stack):
            frames = _frames(reading.frames, self._prefixes)
            return reading if frames is reading.frames else msgspec.structs.replace(reading, frames=frames)
        if isinstance(reading, r.SourceLine):
            file = _file(reading.file, self._prefixes)
            return reading if file == reading.file else msgspec.structs.replace(reading, file=file)
        return reading


@lru_cache(maxsize=4096)
def _started_with(frames: tuple[r.Frame, ...]) -> tuple[bool, frozenset[str]]:
    """True if the interpreter was started with a file of the program's own, else the packages (folders or files) it was started with."""
    modules = [place for place, frame in enumerate(frames) if short_name(frame.function) == "<module>"]
    if not modules or frames[modules[-1]].file.startswith("<"):
        return False, frozenset()
    began = modules[-1]
    command = _COMMAND.search(frames[began].file) is not None
    if not command and is_user(frames[began]) and not _PACKAGE.match(frames[began].file):
        return True, frozenset()
    if any(_in_a_file(frame) for frame in frames[:began]):
        return False, frozenset()  # what a package runs here
    begins = [place for place in modules if place == began or _RUNNER.search(frames[place + 1].file)]
    names = [_named(frames[place]) for place in begins]
    if command:
        called = (_named(frame) for frame in reversed(frames[:began]))
        names += [next((one for one in called if one[0] and one[1] not in PARSERS), ("", ""))]
    return False, frozenset(prefix for prefix, name in names if prefix and name not in RUNNERS)


def _named(frame: r.Frame) -> tuple[str, str]:
    """Prefix of all files of the package that a frame lies in, and its name; both empty outside of packages."""
    found = _PACKAGE.match(frame.file)
    return (found.group(1) + found.group(2), found.group(2).removesuffix(".py")) if found else ("", "")


def _in_a_file(frame: r.Frame) -> bool:
    """True if a frame is of a file of the program's own, in no package."""
    return is_user(frame) and not _PACKAGE.match(frame.file) and not frame.file.startswith("<")


@lru_cache(maxsize=4096)
def _frames(frames: tuple[r.Frame, ...], prefixes: frozenset[str]) -> tuple[r.Frame, ...]:
    if not any(_file(frame.file, prefixes) != frame.file for frame in frames):
        return frames
    return tuple(msgspec.structs.replace(frame, file=_file(frame.file, prefixes)) for frame in frames)


@lru_cache(maxsize=8192)
def _file(file: str, prefixes: frozenset[str]) -> str:
    found = _PACKAGE.match(file)
    if found is None:
        return file
    mark = "./" if found.group(1) + found.group(2) in prefixes else ""
    return found.group(1) + mark + file[found.start(2) :]
