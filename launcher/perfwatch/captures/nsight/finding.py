"""Find nsys and ncu, and which options this version has. Nothing is assumed: its own ``--help`` is read.

They come with CUDA, with the Nsight packages, with Debian, and nsys also inside Nsight Compute; often none is on PATH.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfwatch.errors import CaptureUnavailable
from perfwatch_probes.external import Finished

Run = Callable[[Sequence[str], float, Mapping[str, str] | None], Finished]
"""Command, deadline in seconds, environment (None: ours) to how it ended: ``Window.run``, ``processes.programs.run_program``."""

ASKING_SECONDS = 20.0  # nsys from a cold network disk; warm it answers in 0.02 s

# Below the root, in the order of preference; of several versions in one place the newest.
_PLACES = {
    "nsys": (
        "usr/local/cuda/bin/nsys",
        "opt/nvidia/nsight-systems/*/bin/nsys",
        "opt/nvidia/nsight-systems-cli/*/bin/nsys",
        "opt/nvidia/nsight-systems/*/target-linux-*/nsys",
        "usr/local/cuda-*/bin/nsys",
        "usr/local/cuda*/nsight-systems-*/bin/nsys",
        "usr/lib/nsight-systems/bin/nsys",
        "opt/nvidia/nsight-compute/*/host/target-linux-*/nsys",
        "usr/local/cuda*/nsight-compute-*/host/target-linux-*/nsys",
    ),
    "ncu": (
        "usr/local/cuda/bin/ncu",
        "opt/nvidia/nsight-compute/*/ncu",
        "usr/local/cuda-*/bin/ncu",
        "usr/local/cuda*/nsight-compute-*/ncu",
        "usr/lib/nsight-compute/ncu",
    ),
}
_PRODUCTS = {"nsys": ("Nsight Systems", "nsight-systems-cli"), "ncu": ("Nsight Compute", "cuda-nsight-compute")}
_VERSION = re.compile(r"[Vv]ersion\s+(\d+(?:\.\d+)+)")
_OPTION = re.compile(r"^\s{1,8}(?:-\w(?:,|\s*\[)\s*)?(--[a-z0-9][a-z0-9-]*)", re.MULTILINE)


@dataclass(frozen=True)
class Tool:
    """A profiler that answers."""

    name: str
    path: str
    version: tuple[int, ...]

    @property
    def version_text(self) -> str:
        """As its vendor writes it: 2025.3.1."""
        return ".".join(map(str, self.version[:3]))


def find(name: str, environment: Mapping[str, str], run: Run, root: Path = Path("/")) -> Tool:
    """The first nsys or ncu that answers when it is asked for its version.

    ``PERFWATCH_NSYS`` and ``PERFWATCH_NCU`` name one and leave no choice. Raises CaptureUnavailable: none is there, or
    none of those that are there runs.
    """
    broken = []
    for path in _candidates(name, environment, root):
        try:
            finished = run((str(path), "--version"), ASKING_SECONDS, None)
        except CaptureUnavailable as error:
            broken.append(error.message)
            continue
        found = _VERSION.search(finished.output.decode(errors="replace"))
        if finished.returncode == 0 and found:
            return Tool(name, str(path), tuple(int(part) for part in found[1].split(".")[:4]))
        broken.append(f"{path} {_failure(finished)}")
    product, package = _PRODUCTS[name]
    if broken:
        raise CaptureUnavailable(
            f"{name} ({product}) is installed but does not work: {'; '.join(broken[:3])}",
            f"try it: {broken[0].split()[0]} --version; PERFWATCH_{name.upper()}=PATH names another one",
        )
    raise CaptureUnavailable(
        f"{name} ({product}) is not on PATH, nor in a CUDA or Nsight install",
        f"install it: apt-get install {package}, from NVIDIA's repository, or name it: PERFWATCH_{name.upper()}=PATH",
    )


def armed_tool(
    name: str, facts: Mapping[str, str], environment: Mapping[str, str], run: Run, root: Path = Path("/")
) -> Tool:
    """The nsys or ncu that a job says it was started with, where we would find that very one ourselves; otherwise ours.

    That a job names a program is no reason to run it.
    """
    told = facts.get(name, "")
    if any(str(path) == told for path in _candidates(name, environment, root)):
        return Tool(name, told, tuple(int(part) for part in re.findall(r"\d{1,9}", facts.get("version", ""))[:4]))
    return find(name, environment, run, root)


def options(tool: Tool, run: Run, verb: str = "") -> frozenset[str]:
    """The long options that this version's own help lists, for a verb of nsys (``start``) or for ncu as a whole.

    Raises CaptureUnavailable when it does not print its help.
    """
    command = (tool.path, verb, "--help") if verb else (tool.path, "--help")
    finished = run(command, ASKING_SECONDS, None)
    found = listed_options(finished.output.decode(errors="replace"))
    if not found:
        raise CaptureUnavailable(
            f"{' '.join(command)} lists no options: it {_failure(finished)}",
            f"this {tool.name} {tool.version_text} is broken or of another kind; PERFWATCH_{tool.name.upper()}=PATH names another",
        )
    return found


def listed_options(text: str) -> frozenset[str]:
    """The long options that a help text introduces at the beginning of a line; pure."""
    return frozenset(_OPTION.findall(text))


def _failure(finished: Finished) -> str:
    if finished.returncode is None:
        return f"did not answer within {ASKING_SECONDS:g} s"
    said = (finished.errors.strip() or finished.output.decode(errors="replace").strip()).splitlines()
    how = (
        f"was ended by signal {-finished.returncode}"
        if finished.returncode < 0
        else f"ended with {finished.returncode}"
    )
    return f"{how}: {said[-1][:200]}" if said else how


def _candidates(name: str, environment: Mapping[str, str], root: Path) -> Iterator[Path]:
    """Absolute, for they are run in another folder; only a bare name that the user has given is looked up on PATH when it is run."""
    if named := environment.get(f"PERFWATCH_{name.upper()}"):
        yield Path(named).absolute() if "/" in named else Path(named)
        return
    seen = set()
    for path in _everywhere(name, environment, root):
        if os.path.isfile(path) and path.resolve() not in seen:  # a folder of PATH may be closed to us
            seen.add(path.resolve())
            yield path.absolute()


def _everywhere(name: str, environment: Mapping[str, str], root: Path) -> Iterator[Path]:
    for folder in environment.get("PATH", "").split(":"):
        if folder:
            yield Path(folder) / name
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if environment.get(variable):
            yield Path(environment[variable]) / "bin" / name
    for pattern in _PLACES[name]:
        yield from sorted(root.glob(pattern), key=_by_version, reverse=True)


def _by_version(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", str(path))]
