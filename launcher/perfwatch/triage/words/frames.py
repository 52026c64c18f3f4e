"""What a Python frame means: the vocabulary of CPython's and torch's own functions, and which packages are the program itself.

Only the standard library, torch and widely used libraries are named here; a program's own names never are. A tag says in
what kind of work a thread is; a stack has the tags of all its frames.

A program may be installed as a package (``python -m pkg.train``, ``pkg-train``). Where a file lies does not tell: the package that the
interpreter was started with is the program, if it uses torch. Its files are marked by a ``/./`` before the package (as rsync marks
where a relative path begins): they open as before, and nothing takes them for a library's.
"""

import re
from collections.abc import Callable, Iterable
from functools import lru_cache

import msgspec

from perfwatch.triage.words.vocabulary import STANDARD_PACKAGES, VOCABULARY
from perfwatch_probes import readings as r
from perfwatch_probes.readings import Frame, Stack

# The second is dill's copy of it, which datasets uses.
BOOTSTRAPS = ("multiprocessing/process.py", "multiprocess/process.py")
COMPREHENSIONS = ("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>")

_TABLE = tuple(
    (tag, re.compile(rf"(?:^|/)?(?:{pattern})$"), None if functions == "*" else frozenset(functions.split()))
    for tag, pattern, functions in VOCABULARY
)

# Where packages lie: a folder that pip fills, or the unpacked wheels of a PEX.
_PACKAGES = r"(?:/(?:site|dist)-packages|\.whl)/"
# torch wherever it lies: a checkout that it was built in, a folder that was filled by ``pip install --target``.
_TORCH_FILES = (
    r"/pytorch/torch/|/torch/(?:_tensor|_ops|serialization|cuda/\w+|amp/\w+|nn/(?:functional|modules/\w+|parallel/\w+)|autograd/\w+"
    r"|optim/(?:optimizer|lr_scheduler|adamw?|sgd)|utils/data/(?:dataloader|_utils/\w+)"
    r"|distributed/(?:distributed_c10d|run|fsdp/\w+)|_dynamo/\w+|_inductor/\w+)\.py$"
)
# CPython's library, packages, and code without a file; not what is marked (``/./``) as the program's own.
_LIBRARY = re.compile(
    rf"^(?!.*/\./).*(?:/lib(?:64)?/python\d|{_PACKAGES}|{_TORCH_FILES})|^<(?:frozen|built|__array)|^$"
)
_TORCH = re.compile(rf"{_PACKAGES}torch/|{_TORCH_FILES}")
_TENSORS = re.compile(
    rf"{_PACKAGES}(torchvision/(ops|models)|torchmetrics|torch_\w+|einops|kornia/(geometry|losses|metrics)|gpytorch|botorch|pyro"
    r"|torchdiffeq|e3nn|timm/(models|layers|loss)|transformers/models|diffusers/(models|schedulers)|monai/(losses|networks|metrics))/"
)
_STANDARD = re.compile(r"/lib(64)?/python3?[\d.]*/(?!site-packages|dist-packages)|^<(frozen|built|__array)|^$")
_INSTALLED = re.compile(rf"{_PACKAGES}(?:\./)?([^/.]+)")
_PREFIX = re.compile(rf"^(.*{_PACKAGES})(?:\./)?([^/]+)")
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


def short_name(function: str) -> str:
    """The bare function name: newer interpreters report ``Class.method`` and ``f.<locals>.g``."""
    return function.rsplit(".", 1)[-1]


@lru_cache(maxsize=8192)
def tags_of(function: str, file: str) -> frozenset[str]:
    """The tags of one frame.

    A program's own file has none, even if it is called as one of the standard library. A package is known by its folder and file,
    wherever it lies: ``pip install --target`` fills a folder of any name.
    """
    name = short_name(function)
    if name == "<module>":  # a module that is being imported does not do its work yet
        return frozenset()
    own = not _of_library(file)
    return frozenset(
        tag
        for tag, pattern, names in _TABLE
        if (names is None or name in names)
        and (found := pattern.search(file)) is not None
        and not (own and _named_as_standard(found[0]))
    )


def _named_as_standard(path: str) -> bool:
    """True if the end of a path is a mere file, or lies in a folder that is called as a package of the standard library."""
    folder, _, file = path.strip("/").partition("/")
    return not file or folder in STANDARD_PACKAGES


def own_frames(stack: Stack) -> tuple[Frame, ...]:
    """The frames that a process pushed itself: a forked worker keeps its parent's below ``BaseProcess._bootstrap``."""
    return _own(stack.frames)


@lru_cache(maxsize=4096)
def _own(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    for index, frame in enumerate(frames):
        if short_name(frame.function) == "_bootstrap" and frame.file.endswith(BOOTSTRAPS):
            return frames[: index + 1]
    return frames


@lru_cache(maxsize=4096)
def _tags(frames: tuple[Frame, ...]) -> frozenset[str]:
    found = frozenset().union(*(tags_of(frame.function, frame.file) for frame in frames)) if frames else frozenset()
    # Who turns its part of a collective into bytes works: it is the others that wait.
    return found - {"collective"} if "pickling" in found else found


def tags(stack: Stack) -> frozenset[str]:
    """The tags of all frames that the process pushed itself."""
    return _tags(own_frames(stack))


def inner_frames(stack: Stack) -> tuple[Frame, ...]:
    """The library frames that the program's innermost own frame called, innermost first."""
    return _inner(own_frames(stack))


@lru_cache(maxsize=4096)
def _inner(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    own = next((index for index, frame in enumerate(frames) if is_user(frame)), len(frames))
    return frames[:own]


def inner_tags(stack: Stack) -> frozenset[str]:
    """Their tags: what the thread does at this moment."""
    return _tags(inner_frames(stack))


def is_user(frame: Frame) -> bool:
    """Code of the program itself: not the standard library, not an installed package."""
    return not _of_library(frame.file)


@lru_cache(maxsize=8192)  # asked for each frame of each stack by every rule: most of what a verdict costs
def _of_library(file: str) -> bool:
    return _LIBRARY.search(file) is not None


def is_standard(frame: Frame) -> bool:
    """Code of the standard library."""
    return _STANDARD.search(frame.file) is not None


def package_of(frame: Frame) -> str | None:
    """The installed package that a frame is of; None for the program's own code and the standard library."""
    return None if "/./" in frame.file else installed_as(frame)


def installed_as(frame: Frame) -> str | None:
    """The installed package that a frame is of, be it the program itself; None outside of packages."""
    found = _INSTALLED.search(frame.file)
    return found.group(1) if found else None


def _is_written(frame: Frame) -> bool:
    """The program's own and in a file: what was made by ``exec``, a manager's proxy say, nobody can look at."""
    return is_named(frame) and not frame.file.startswith("<")


def is_named(frame: Frame) -> bool:
    """Code of the program itself that has a name to be called by."""
    return is_user(frame) and short_name(frame.function) not in COMPREHENSIONS


def of_torch(frame: Frame) -> bool:
    """Code of torch itself."""
    return _TORCH.search(frame.file) is not None


def of_tensors(frame: Frame) -> bool:
    """Code of torch, or of a library that is written in its operations: what takes time there may run on a GPU."""
    return of_torch(frame) or _TENSORS.search(frame.file) is not None


def steps_torch(frame: Frame) -> bool:
    """True if a frame is the ``step`` of one of torch's own optimizers: what is above it was asked for by that."""
    return (
        of_torch(frame) and short_name(frame.function) == "step" and "optimizer" in tags_of(frame.function, frame.file)
    )


def inside(frame: Frame, stack: Stack) -> bool:
    """True if a stack is in the function of some frame, or in what that calls."""
    return any((one.function, one.file) == (frame.function, frame.file) for one in stack.frames)


def user_frames(stack: Stack) -> tuple[Frame, ...]:
    """The program's own frames, innermost first; where there is none, what ``user_frame`` takes instead."""
    return _users(own_frames(stack))


@lru_cache(maxsize=4096)
def _users(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    own = tuple(frame for frame in frames if is_user(frame))
    if any(map(_is_written, own)):
        own = tuple(frame for frame in own if not frame.file.startswith("<"))
    instead = None if own else _user(frames)
    return own if instead is None else (instead,)


def user_frame(stack: Stack) -> Frame | None:
    """The innermost frame of the program's own code; failing that, the innermost one outside the standard library and torch.

    A comprehension, to which older interpreters give a frame of its own, stands for the function around it. Of a forked worker those
    below its own start are its parent's: where that was when it forked.
    """
    return _user(own_frames(stack))


@lru_cache(maxsize=4096)
def _user(frames: tuple[Frame, ...]) -> Frame | None:
    for takes in (_is_written, is_named, is_user):
        for frame in frames:
            if takes(frame):
                return frame
    for frame in frames:
        if not is_standard(frame) and not of_torch(frame):
            return frame
    return frames[0] if frames else None


def collective_name(stack: Stack) -> str | None:
    """The collective that this stack is in ("all_reduce"), "backward" for a gradient reduction, or None."""
    outer = None
    for frame in stack.frames:
        if "collective" in tags_of(frame.function, frame.file):
            outer = short_name(frame.function)
    return outer


def show(frame: Frame | None) -> str | None:
    """``function (file:line)`` with the file's last part, as a person would say it."""
    if frame is None:
        return None
    return f"{short_name(frame.function)} ({frame.file.rsplit('/', 1)[-1]}:{frame.line})"


def any_tag(found: Iterable[str], *wanted: str) -> bool:
    """True if one of the wanted tags is there."""
    return not frozenset(wanted).isdisjoint(found)


class Program:
    """The packages of one job that are the program itself, as far as its main threads have told."""

    def __init__(self) -> None:
        self._prefixes: frozenset[str] = frozenset()
        self._in_files = False  # a process of the job runs a program in files of its own: packages only start it

    def learns(self, stack: Stack, has_torch: Callable[[int], bool]) -> bool:
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
        if isinstance(reading, Stack):
            frames = _marked(reading.frames, self._prefixes)
            return reading if frames is reading.frames else msgspec.structs.replace(reading, frames=frames)
        if isinstance(reading, r.SourceLine):
            file = _marked_file(reading.file, self._prefixes)
            return reading if file == reading.file else msgspec.structs.replace(reading, file=file)
        return reading


@lru_cache(maxsize=4096)
def _started_with(frames: tuple[Frame, ...]) -> tuple[bool, frozenset[str]]:
    """True if the interpreter was started with a file of the program's own, else the packages (folders or files) it was started with."""
    modules = [place for place, frame in enumerate(frames) if short_name(frame.function) == "<module>"]
    if not modules or frames[modules[-1]].file.startswith("<"):
        return False, frozenset()
    began = modules[-1]
    command = _COMMAND.search(frames[began].file) is not None
    if not command and _in_a_file(frames[began]):
        return True, frozenset()
    if any(_in_a_file(frame) for frame in frames[:began]):
        return False, frozenset()  # what a package runs here
    begins = [place for place in modules if place == began or _RUNNER.search(frames[place + 1].file)]
    names = [_named(frames[place]) for place in begins]
    if command:
        called = (_named(frame) for frame in reversed(frames[:began]))
        names += [next((one for one in called if one[0] and one[1] not in PARSERS), ("", ""))]
    return False, frozenset(prefix for prefix, name in names if prefix and name not in RUNNERS)


def _named(frame: Frame) -> tuple[str, str]:
    """Prefix of all files of the package that a frame lies in, and its name; both empty outside of packages."""
    found = _PREFIX.match(frame.file)
    return (found.group(1) + found.group(2), found.group(2).removesuffix(".py")) if found else ("", "")


def _in_a_file(frame: Frame) -> bool:
    """True if a frame is of a file of the program's own, in no package."""
    return is_user(frame) and not _PREFIX.match(frame.file) and not frame.file.startswith("<")


@lru_cache(maxsize=4096)
def _marked(frames: tuple[Frame, ...], prefixes: frozenset[str]) -> tuple[Frame, ...]:
    if not any(_marked_file(frame.file, prefixes) != frame.file for frame in frames):
        return frames
    return tuple(msgspec.structs.replace(frame, file=_marked_file(frame.file, prefixes)) for frame in frames)


@lru_cache(maxsize=8192)
def _marked_file(file: str, prefixes: frozenset[str]) -> str:
    found = _PREFIX.match(file)
    if found is None:
        return file
    mark = "./" if found.group(1) + found.group(2) in prefixes else ""
    return found.group(1) + mark + file[found.start(2) :]
