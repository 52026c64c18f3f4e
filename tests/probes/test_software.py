"""Versions of what a process runs with, from the files that it has mapped."""

import os
import sys
from pathlib import Path

import pytest

from perfwatch_probes.deadline import KillableChild
from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.guest import Recorded
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import Software
from perfwatch_probes.software import parse_maps, parse_version, software

pytestmark = pytest.mark.live

MAPS = """\
55d0-55d1 r-xp 00000000 08:01 42 /opt/conda/bin/python3.12
7f00-7f01 r-xp 00000000 08:01 43 /opt/conda/lib/python3.12/site-packages/torch/lib/libtorch_cpu.so
7f01-7f02 r-xp 00000000 08:01 44 /opt/conda/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2
"""
VERSION = "from typing import Optional\n\n__version__ = '2.11.0+cu130'\ndebug = False\ncuda: Optional[str] = '13.0'\n"


def test_the_versions_are_told_by_the_files_of_the_process(tmp_path: Path, child: KillableChild) -> None:
    """A guest reads them."""
    packages = tmp_path / "opt/conda/lib/python3.12/site-packages"
    (packages / "torch").mkdir(parents=True)
    (tmp_path / "42").mkdir()
    (packages / "torch" / "version.py").write_text(VERSION)
    (packages / "nvidia_nccl_cu13-2.28.9.dist-info").mkdir()
    (tmp_path / "42" / "maps").write_text(MAPS.replace("/opt", f"{tmp_path}/opt"))

    found = software(Filesystem(proc=tmp_path), 42, child, Recorded(child))

    assert found == Software(pid=42, torch="2.11.0+cu130", cuda="13.0", nccl="2.28.9", python="3.12")


def test_a_processor_build_has_no_cuda() -> None:
    """``cuda`` is None in its file."""
    assert parse_version("__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\n") == ("2.13.0+cpu", None)


def test_a_process_without_torch_tells_its_python_alone() -> None:
    """And where torch lies is not guessed."""
    assert parse_maps(MAPS.splitlines()[0]) == ("3.12", None)


def test_what_cannot_be_read_is_unavailable(tmp_path: Path, child: KillableChild) -> None:
    """The process has ended, or maps nothing that tells."""
    (tmp_path / "43").mkdir()
    (tmp_path / "43" / "maps").write_text("7f00-7f01 r-xp 0 0 0 /bin/true\n")

    for pid in (42, 43):
        with pytest.raises(Unavailable):
            software(Filesystem(proc=tmp_path), pid, child, Recorded(child))


def test_a_living_process_tells(child: KillableChild) -> None:
    """This very one."""
    expected = f"{sys.version_info[0]}.{sys.version_info[1]}"

    assert software(Filesystem(), os.getpid(), child, Recorded(child)).python == expected
