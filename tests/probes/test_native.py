"""Native time of one thread, by perf."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from perfwatch_probes.native import NativeProbe, explain, parse_samples, readable
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import NativeProfile
from perfwatch_probes.stacks import left_traced

SAMPLES = """\
     7f8558939638 _PyEval_EvalFrameDefault (/opt/python/lib/libpython3.11.so.1.0)
     7f8558939640 _PyEval_EvalFrameDefault (/opt/python/lib/libpython3.11.so.1.0)
     7f8548ec0851 _ZN2at6native12_GLOBAL__N_110mul_kernelERNS_18TensorIteratorBaseE (/venv/torch/lib/libtorch_cpu.so)
     7f85cafe0000 [unknown] (/usr/lib/libcuda.so.1)
     7f85cafe0001 (/usr/lib/libcuda.so.1)
"""
LIMITED = "Error:\nAccess to performance monitoring and observability operations is limited.\n"
NO_THREAD = "Error:\nThe sys_perf_event_open() syscall returned with 3 (No such process) for event (cpu-clock:u).\n"
WRONG_KERNEL = "WARNING: perf not found for kernel 6.8.0-41\n  You may need to install: linux-tools-6.8.0-41-generic\n"


def test_samples_become_shares_per_symbol() -> None:
    """Unknown symbols go by the name of their library: a spin inside the driver is still visible."""
    assert parse_samples(SAMPLES, 41, 44) == NativeProfile(
        pid=41,
        tid=44,
        shares={"_PyEval_EvalFrameDefault": 0.4, "[libcuda.so.1]": 0.4, "at::native::(anonymous)::mul_kernel": 0.2},
        samples=5,
    )


def test_a_thread_that_did_not_run_has_no_samples() -> None:
    """That is an answer too."""
    assert parse_samples("", 41, 44) == NativeProfile(pid=41, tid=44, shares={}, samples=0)


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("malloc", "malloc"),
        ("_ZN2at4_ops3add4callERKNS_6TensorE", "at::_ops::add::call"),
        ("_ZNK3c1010TensorImpl4sizeEl", "c10::TensorImpl::size"),
        ("_ZL15gc_collect_mainP3_ts", "gc_collect_main"),
        ("_ZNSt6vectorIlSaIlEED2Ev", "vector"),
        ("_Z", "_Z"),
    ],
)
def test_mangled_names_become_readable(symbol: str, name: str) -> None:
    """Up to the first template or function argument."""
    assert readable(symbol) == name


@pytest.mark.parametrize(
    ("errors", "reason", "advice"),
    [
        (LIMITED, "may not sample", "kernel.perf_event_paranoid=2"),
        (NO_THREAD, "is no more", ""),
        (WRONG_KERNEL, "does not belong to its kernel", "linux-tools"),
        ("", "no reason given", ""),
    ],
)
def test_a_refusal_of_perf_says_what_would_help(errors: str, reason: str, advice: str) -> None:
    """The texts are of perf 6.1 and of Ubuntu's wrapper."""
    refusal = explain(errors, 44)

    assert reason in refusal.reason
    assert advice in refusal.advice


def test_without_perf_the_advice_is_how_to_get_it() -> None:
    """It is not a dependency: most images lack it."""
    probe = NativeProbe("x")
    probe.command = None

    with pytest.raises(Unavailable) as caught:
        probe.look(41, 44)
    assert "linux-perf" in caught.value.advice


@pytest.mark.live
def test_a_perf_that_fails_is_unavailable(tmp_path: Path) -> None:
    """Its complaint reaches the reader, and nothing of it is left running."""
    broken = tmp_path / "perf"
    broken.write_text("#!/bin/sh\necho 'perf: no such feature' >&2\nexit 129\n")
    broken.chmod(0o755)

    with pytest.raises(Unavailable, match="no such feature"):
        NativeProbe(str(broken)).look(os.getpid(), 44)


@pytest.mark.live
@pytest.mark.skipif(shutil.which("perf") is None, reason="perf is not installed here")
def test_a_spinning_thread_is_seen_in_the_interpreter_and_not_stopped(start: Callable[[str], int]) -> None:
    """The real perf finds the evaluation loop of an endless Python program."""
    pid = start("print('ready', flush=True)\nwhile True: pass")
    try:
        [profile] = NativeProbe().look(pid, pid, seconds=0.2)
    except Unavailable as unavailable:
        if "may not sample" in unavailable.reason or "its kernel" in unavailable.reason:
            pytest.skip(unavailable.reason)
        raise

    assert profile.samples > 0
    assert any("PyEval" in name or "python" in name for name in profile.shares)
    assert left_traced(pid) == []
