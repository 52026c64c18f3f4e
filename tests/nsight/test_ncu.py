"""ncu's command lines, and ``perfwatch ncu`` on an ncu that answers as the real one does, or not at all."""

import gzip
import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from perfwatch.captures.nsight.choosing import longest
from perfwatch.captures.nsight.finding import Tool
from perfwatch.captures.nsight.ncu_command import Choice, armed_command, can_attach, function_name, run_command
from perfwatch.captures.nsight.ncu_report import read_report
from perfwatch.captures.nsight.second_run import measure
from perfwatch.errors import CaptureFailed, CaptureUnavailable, PermissionDenied, TraceUnreadable, UsageError
from perfwatch.processes.programs import run_program

TOOL = Tool("ncu", "/opt/ncu", (2025, 3, 1))
HERE = Path(__file__).parent
TABLE = gzip.decompress((HERE.parent / "traces/ncu_kernels.csv.gz").read_bytes()).decode()
NAMES = [line.split("\t", 1) for line in (HERE.parent / "traces/kernel_names.txt").read_text().splitlines()]


def matches(choice: Choice, function: str) -> bool:
    """As ncu applies the filter to a function's name."""
    return re.search(choice.filter().removeprefix("regex:"), function) is not None


REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


@pytest.mark.parametrize("choice", [Choice(), Choice("."), Choice("AllReduce|nvjet"), Choice(names=(REDUCE,))])
def test_a_collective_is_never_measured(choice: Choice) -> None:
    """Whatever is asked for: a kernel that waits for other ranks hangs when it is run again."""
    assert not matches(choice, REDUCE)
    assert not matches(choice, "nvshmem_barrier_all_kernel")


def test_kernels_are_chosen_by_expression_or_by_name() -> None:
    """The expression matches anywhere, names match from the front; without either everything else is measured."""
    assert matches(Choice(), "nvjet_sm90_tst_192x128")
    assert matches(Choice("flash|nvjet"), "cudnn_generated_fort_native_sdpa_sm90_flash_bprop")
    assert not matches(Choice("flash|nvjet"), "reduce_kernel")
    assert matches(Choice(names=("reduce_kernel", "nvjet_sm90")), "reduce_kernel")


def test_an_expression_that_is_none_is_a_usage_error() -> None:
    """Before anything runs."""
    with pytest.raises(UsageError, match="--kernel"):
        Choice("(").filter()


def test_clocks_and_caches_are_left_alone_and_the_run_is_bounded() -> None:
    """In every form; only a second run is ended."""
    second = run_command(
        TOOL, Choice(skip=7, count=9), Path("/r.ncu-rep"), Path("/l"), ("python", "train.py"), kill=True
    )
    armed = armed_command(TOOL, Choice(), Path("/r.ncu-rep"), Path("/l"), ("python", "train.py"))

    for command in (second, armed):
        text = " ".join(command)
        assert "--clock-control none --cache-control none" in text
        assert "--log-file /l" in text
    assert "--launch-skip 7 --launch-count 9" in " ".join(second)
    assert "--kill yes" in " ".join(second)
    assert "--kill" not in armed
    assert "--profile-from-start off" in " ".join(armed)
    assert armed[-2:] == second[-2:] == ("python", "train.py")
    assert not can_attach(frozenset({"--mode"}))
    assert can_attach(frozenset({"--mode", "--process-id", "--list-injection-path-64"}))


def test_the_function_of_a_kernel_is_found_in_every_spelling() -> None:
    """Kineto's, nsys' and ncu's."""
    found = {function_name(name) for _, name in NAMES}

    assert {"vectorized_elementwise_kernel", "nvjet_sm90_tst_96x64_64x8_2x4_h_bz_NTN", "CatArrayBatchedCopy"} <= found
    assert {"multi_tensor_apply_kernel", "elementwise_kernel_with_index"} <= found
    assert "" not in {function_name(name) for kind, name in NAMES if not name.startswith("Mem")}


def test_a_trace_of_the_real_job_chooses_its_longest_kernels(tmp_path: Path) -> None:
    """By function, longest first, without the collective, however long that is."""
    spans = [
        ("nvjet_sm90_a", 50.0), ("ncclDevKernel_AllReduce_Sum", 900.0), ("void at::native::reduce_kernel<1>(T3)", 70.0),
        ("nvjet_sm90_a", 40.0), ("small", 1.0),
    ]  # fmt: skip
    events = ",".join(
        f'\n  {{\n    "ph": "X", "cat": "kernel", "name": "{name}", "pid": 0, "tid": 7,\n    "ts": {index}.5, "dur": {time}\n  }}'
        for index, (name, time) in enumerate(spans)
    )
    trace = tmp_path / "rank0.json.gz"
    trace.write_bytes(gzip.compress(f'{{\n  "schemaVersion": 1,\n  "traceEvents": [{events}\n  ]\n}}'.encode()))

    assert longest(trace, 2, {}, run_program) == ("nvjet_sm90_a", "reduce_kernel")
    with pytest.raises(TraceUnreadable, match="no such file"):
        longest(tmp_path / "none", 2, {}, run_program)


def ncu(folder: Path, behaviour: str) -> dict[str, str]:
    """An environment with an ncu that does this when it is to run a program, and imports the recorded table."""
    (folder / "table.csv").write_text(TABLE)
    script = f"""#!{sys.executable}
import shutil, sys, time, os
words = sys.argv[1:]
def after(name): return words[words.index(name) + 1]
if words == ["--version"]: print("NVIDIA (R) Nsight Compute Command Line Profiler\\nVersion 2025.3.1.0 (build 1)")
elif words == ["--help"]: print(open({str(HERE / "ncu_2025.3_help.txt")!r}).read())
elif "--import" in words: shutil.copy({str(folder / "table.csv")!r}, after("--log-file"))
else:
    log = open(after("--log-file"), "w")
    report = after("--export")
{chr(10).join("    " + line for line in behaviour.splitlines())}
"""
    program = folder / "ncu"
    program.write_text(script)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return {**os.environ, "PERFWATCH_NCU": str(program)}


MEASURES = 'print("==PROF== Profiling \\"k\\" - 0: 3 passes", file=log, flush=True)\nopen(report, "w").write("report")'


@pytest.mark.live
def test_a_second_run_gives_the_table_and_keeps_the_report(tmp_path: Path) -> None:
    """And takes its log away again."""
    report = tmp_path / "k.ncu-rep"
    measured = measure(("true",), Choice(), report, ncu(tmp_path, MEASURES), proc=tmp_path)

    assert measured.table.kernels == 330
    assert report.read_text() == "report"
    assert not report.with_suffix(".log").exists()


@pytest.mark.live
@pytest.mark.parametrize(
    ("behaviour", "limit", "error", "says"),
    [
        ("sys.exit(3)", 30.0, CaptureFailed, r"ended \(exit code 3\) before a chosen kernel"),
        ('print("==ERROR== Failed to find metric x", file=log)\nsys.exit(1)', 30.0, CaptureFailed, "Failed to find metric x"),
        ('print("==ERROR== ERR_NVGPUCTRPERM - The user", file=log)\nsys.exit(1)', 30.0, PermissionDenied, "ERR_NVGPUCTRPERM"),
        ("time.sleep(600)", 0.5, CaptureFailed, "no report within 0.5 s"),
        ("os.abort()", 30.0, CaptureFailed, "exit code -6"),
    ],
)  # fmt: skip
def test_a_second_run_that_brings_nothing_says_why(
    tmp_path: Path, behaviour: str, limit: float, error: type[Exception], says: str
) -> None:
    """Too short, an error of ncu's, no permission, never ending, crashing."""
    with pytest.raises(error, match=says):
        measure(("true",), Choice(), tmp_path / "k.ncu-rep", ncu(tmp_path, behaviour), limit, proc=tmp_path)


@pytest.mark.live
def test_an_old_ncu_and_a_place_that_takes_nothing_are_refused_before_anything_runs(tmp_path: Path) -> None:
    """With what is missing, and the option that names another place."""
    environment = ncu(tmp_path, MEASURES)
    with pytest.raises(UsageError, match="cannot be written to"):
        measure(("true",), Choice(), Path("/proc/k.ncu-rep"), environment, proc=tmp_path)
    with pytest.raises(UsageError, match="exists already"):
        measure(("true",), Choice(), tmp_path / "ncu", environment, proc=tmp_path)

    old = tmp_path / "old"
    old.write_text("#!/bin/sh\ncase $1 in --version) echo Version 2018.1;; --help) echo '  --metrics arg';; esac\n")
    old.chmod(0o755)
    with pytest.raises(CaptureUnavailable, match="too old: it has no --clock-control"):
        measure(("true",), Choice(), tmp_path / "k.ncu-rep", {"PERFWATCH_NCU": str(old)}, proc=tmp_path)


@pytest.mark.live
def test_a_report_that_ncu_cannot_read_is_refused(tmp_path: Path) -> None:
    """Its own words are passed on."""
    report = tmp_path / "k.ncu-rep"
    report.write_text("not a report")
    broken = tmp_path / "ncu"
    broken.write_text(
        "#!/bin/sh\ncase $1 in --version) echo Version 2025.3.1;; *) echo '==ERROR== Failed to load the report file.'; exit 1;; esac\n"
    )
    broken.chmod(0o755)

    with pytest.raises(TraceUnreadable, match="Failed to load the report file"):
        read_report(report, {"PERFWATCH_NCU": str(broken)}, run_program)
    with pytest.raises(TraceUnreadable, match="no such file"):
        read_report(tmp_path / "none.ncu-rep", {}, run_program)


def test_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    """A .csv.gz that ends in the middle."""
    cut = tmp_path / "k.csv.gz"
    cut.write_bytes((HERE.parent / "traces/ncu_kernels.csv.gz").read_bytes()[:5000])

    with pytest.raises(TraceUnreadable, match=r"damaged|cut"):
        read_report(cut, {}, run_program)


@pytest.mark.live
def test_the_command_prints_the_table_after_the_programs_own_output(tmp_path: Path) -> None:
    """JSON for a program; a line on stderr says where the report is."""
    done = subprocess.run(
        [sys.executable, "-m", "perfwatch", "ncu", "--json", "--output", str(tmp_path / "k.ncu-rep"), "--", "true"],
        env=ncu(tmp_path, MEASURES),
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert (done.returncode, done.stderr.startswith("perfwatch: 330 kernels in")) == (0, True)
    assert json.loads(done.stdout)["families"][0]["name"] == "gemm"
