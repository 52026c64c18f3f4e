"""Which Python, torch, CUDA and NCCL a process runs with, from the files that it has mapped: nothing is imported or run.

Source: /proc/PID/maps, and of torch's folder ``version.py`` and the names of the installed packages beside it.
Privilege: the same user or CAP_SYS_PTRACE. Cost: 2 ms, once per job. The files are the job's: a guest reads them, in the root of
the process, so that a container's are found too.
"""

import re

from perfwatch_probes import guest
from perfwatch_probes.deadline import Caller
from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.guest import Hosts
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import Software

NAME = "software"
NEEDS = "same user or CAP_SYS_PTRACE"
COST = "2 ms, once per job"

DEADLINE_SECONDS = 1.0
_LARGEST_BYTES = 64 * 1024  # torch's version.py has 300
_MOST_PACKAGES = 8192
_TORCH = re.compile(r"(/\S+)/torch/lib/libtorch(?:_\w+)?\.so")
_PYTHON = re.compile(r"/(?:lib)?python(3\.\d+)(?![\w-])")
_TORCH_VERSION = re.compile(r"^__version__\s*=\s*['\"]([\w.+-]{1,40})['\"]", re.M)
_CUDA_VERSION = re.compile(r"^cuda\s*(?::[^=\n]*)?=\s*['\"]([\w.]{1,20})['\"]", re.M)
_NCCL = re.compile(r"nvidia_nccl_cu\d+-([\w.]{1,20})\.dist-info")


def software(filesystem: Filesystem, pid: int, child: Caller, hosts: Hosts) -> Software:
    """What a process runs with; a version that its files do not tell is None.

    Args:
        filesystem: where /proc is.
        pid: a process that has torch loaded.
        child: where its memory map is read.
        hosts: where its files are read.

    Raises Unavailable when its memory map cannot be read in time.
    """
    maps = child.call(filesystem.read_text, f"{filesystem.proc}/{pid}/maps", deadline_seconds=DEADLINE_SECONDS)
    python, packages = parse_maps(maps)
    text, nccl = "", None
    if packages is not None:
        try:
            text, nccl = hosts.inside(pid).call(installed, packages, deadline_seconds=DEADLINE_SECONDS)
        except (Unavailable, OSError, ValueError):
            pass  # the versions stay unknown
    torch, cuda = parse_version(text)
    if (torch, cuda, nccl, python) == (None, None, None, None):
        raise Unavailable(f"process {pid} has neither Python nor torch mapped from files that tell their version")
    return Software(pid=pid, torch=torch, cuda=cuda, nccl=nccl, python=python)


def installed(packages: str) -> tuple[str, str | None]:
    """torch's version.py, and NCCL's version, of a folder of packages; runs in a guest. Raises OSError or ValueError."""
    text = guest.read(f"{packages}/torch/version.py", _LARGEST_BYTES).decode("utf-8", "replace")
    names = guest.names(packages, _MOST_PACKAGES)
    return text, next((found[1] for name in names if (found := _NCCL.fullmatch(name))), None)


def parse_maps(maps: str) -> tuple[str | None, str | None]:
    """Python's version (3.11), and the folder in which torch is installed."""
    python, torch = _PYTHON.search(maps), _TORCH.search(maps)
    return (python[1] if python else None), (torch[1] if torch else None)


def parse_version(text: str) -> tuple[str | None, str | None]:
    """torch's own version and that of the CUDA it was built for, from torch/version.py."""
    torch, cuda = _TORCH_VERSION.search(text), _CUDA_VERSION.search(text)
    return (torch[1] if torch else None), (cuda[1] if cuda else None)
