"""``run --arm ncu-attach`` prepares a job for an ncu that attaches, or says why it does not; a script stands for ncu."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from perfwatch.captures.nsight.arming import prepare
from perfwatch.captures.nsight.ncu_attach import arm
from perfwatch.errors import CaptureUnavailable
from perfwatch.processes.armed import read_armed
from perfwatch.processes.programs import run_program
from perfwatch_probes.agent_folder import AgentFolder
from tests.nsight.attachable import attachable_ncu

pytestmark = pytest.mark.live


def armed(folder: Path, program: Path, **more: str) -> Mapping[str, str]:
    """The environment in which the job would start."""
    return arm({"PERFWATCH_NCU": str(program), **more}, folder, run_program, proc=folder)


def test_the_library_is_named_to_the_agent_and_to_itself(tmp_path: Path) -> None:
    """The job's command stays its own, and what was prepared is found by any watcher."""
    (tmp_path / "libcuda-injection.so").touch()
    environment = armed(tmp_path, attachable_ncu(tmp_path))

    assert environment["PERFWATCH_KERNEL_LIBRARY"] == str(tmp_path / "libcuda-injection.so")
    assert environment["NVTX_INJECTION64_PATH"] == str(tmp_path / "libcuda-injection.so")
    assert environment["NV_COMPUTE_PROFILER_PERFWORKS_DIR"] == str(tmp_path)
    assert environment["NV_COMPUTE_PROFILER_IN_PROCESS"] == "1"
    assert read_armed(AgentFolder(tmp_path))["ncu"] == {
        "ncu": str(tmp_path / "ncu"),
        "version": "2026.2.1",
        "attaches": "yes",
    }


def test_where_ncu_cannot_attach_nothing_is_prepared_and_it_is_said(tmp_path: Path) -> None:
    """Too old, without its library, or with another tool in its stead."""
    old = attachable_ncu(tmp_path, version="2025.3.1", attaches="")
    with pytest.raises(
        CaptureUnavailable, match=r"2025\.3\.1 .* does not attach to a process, 2026\.2\.1 does"
    ) as raised:
        armed(tmp_path, old)
    assert "--arm ncu starts the job under this one" in raised.value.advice
    for named in ("here/there", "/nowhere"):
        with pytest.raises(CaptureUnavailable, match=r"names no folder with a libcuda-injection\.so"):
            armed(tmp_path, attachable_ncu(tmp_path, named=named))
    with pytest.raises(CaptureUnavailable, match="CUDA_INJECTION64_PATH is set"):
        armed(tmp_path, attachable_ncu(tmp_path), CUDA_INJECTION64_PATH="/other.so")

    assert read_armed(AgentFolder(tmp_path)) == {}


def test_a_job_starts_as_ever_without_such_an_ncu(tmp_path: Path) -> None:
    """Its command and environment are untouched; a line says so."""
    environment = {"PERFWATCH_NCU": str(attachable_ncu(tmp_path, version="2025.3.1", attaches=""))}
    prepared = prepare("ncu-attach", ("python", "train.py"), environment, tmp_path)

    assert (prepared.command, prepared.environment) == (("python", "train.py"), environment)
    assert prepared.words[0].startswith("perfwatch: not armed with ncu-attach: ncu 2025.3.1")
