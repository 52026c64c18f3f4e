"""A window of nsys is read into the same readings as a trace of torch, from nsys' own SQLite export."""

import gzip
import sqlite3
from pathlib import Path

import pytest

from perfwatch.errors import TraceUnreadable
from perfwatch.traces.nsys_trace import ELSEWHERE, kernel_times, read
from perfwatch.traces.torch_summary import summary

PID, TID = 4242, 4243
GLOBAL = PID << 24
MILLISECOND = 1_000_000


def database(path: Path, kernels: int = 3) -> Path:
    """Kernels of 2 ms every 4 ms, a copy from pageable memory between two of them, and a wait for the card at the end."""
    with sqlite3.connect(path) as made:
        made.executescript(
            """
            CREATE TABLE StringIds (id INTEGER, value TEXT);
            CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL
                (start INT, end INT, deviceId INT, correlationId INT, globalPid INT, demangledName INT, shortName INT);
            CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INT, end INT, deviceId INT, correlationId INT, globalPid INT,
                bytes INT, copyKind INT, srcKind INT, dstKind INT);
            CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME
                (start INT, end INT, globalTid INT, correlationId INT, nameId INT, returnValue INT);
            INSERT INTO StringIds VALUES (1, 'nvjet_sm90_tst'), (2, 'ncclDevKernel_AllReduce_Sum'),
                (3, 'cudaLaunchKernel_v7000'), (4, 'cudaStreamSynchronize_v3020');
            """
        )
        for index in range(kernels):
            begin = 4 * index * MILLISECOND
            name = 2 if index == 1 else 1
            made.execute(
                "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?,?,0,?,?,?,?)",
                (begin, begin + 2 * MILLISECOND, index, GLOBAL, name, name),
            )
            made.execute(
                "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?,?,?,?,3,0)",
                (begin, begin + 1000, GLOBAL | TID, index),
            )
        made.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?,?,0,99,?,1048576,1,0,2)",
            (2 * MILLISECOND, 3 * MILLISECOND, GLOBAL),
        )
        made.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?,?,?,100,4,0)",
            (10 * MILLISECOND, 20 * MILLISECOND, GLOBAL | TID),
        )
    return path


def test_a_window_becomes_the_reading_of_a_rank(tmp_path: Path) -> None:
    """Busy share, families, exposed collective, pageable copy, the wait for the card."""
    (found,) = read(database(tmp_path / "w.sqlite"), {PID: 3})

    assert (found.pid, found.rank, found.window_seconds) == (PID, 3, 0.02)
    assert found.gpu_busy_share == pytest.approx(7 / 20)
    assert found.families["gemm"] == pytest.approx(4 / 7, abs=1e-3)
    assert found.exposed_communication_share == pytest.approx(2 / 20)
    assert (found.pageable_copies, found.pageable_copy_bytes) == (1, 1_048_576)
    assert (found.syncs[0].call, found.syncs[0].count) == ("cudaStreamSynchronize", 1)


def test_what_nsys_cannot_know_is_left_open(tmp_path: Path) -> None:
    """Not "Python", not "no fallback": missing is not zero."""
    (found,) = read(database(tmp_path / "w.sqlite"))

    assert found.idle["sync"] == pytest.approx(10 / 20)
    assert found.idle[ELSEWHERE] == pytest.approx(3 / 20)
    assert "python" not in found.idle
    assert (found.steps, found.math_attention_share, found.operations) == (0, None, ())
    assert any("the GPU is busy 35%" in line for line in summary([found]))


def test_kernel_times_are_summed_by_name(tmp_path: Path) -> None:
    """For choosing what to measure."""
    assert kernel_times(database(tmp_path / "w.sqlite")) == pytest.approx(
        {"nvjet_sm90_tst": 0.004, "ncclDevKernel_AllReduce_Sum": 0.002}
    )


def test_a_job_without_a_gpu_gives_no_reading(tmp_path: Path) -> None:
    """A table that is not there is no error."""
    path = tmp_path / "cpu.sqlite"
    with sqlite3.connect(path) as made:
        made.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")

    assert read(path) == []


def hostile(path: Path, statement: str) -> Path:
    """An export whose table of kernels is something else."""
    with sqlite3.connect(path) as made:
        made.executescript("CREATE TABLE StringIds (id INTEGER, value TEXT);" + statement)
    return path


def test_what_is_no_export_is_refused_with_a_reason(tmp_path: Path) -> None:
    """Missing, text, another database, cut in the middle, columns that are not there, cells that are no numbers."""
    text, other = tmp_path / "text.sqlite", tmp_path / "other.sqlite"
    text.write_text("hello " * 1000)
    with sqlite3.connect(other) as made:
        made.execute("CREATE TABLE mine (x)")
    cut = database(tmp_path / "cut.sqlite", kernels=3000)
    cut.write_bytes(cut.read_bytes()[:40_000])
    columns = hostile(tmp_path / "c.sqlite", "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT);")
    cells = hostile(
        tmp_path / "d.sqlite",
        "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (globalPid, start, end, correlationId);"
        "INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET VALUES ('x', 'y', 'z', NULL);",
    )

    for path, says in (
        (tmp_path / "none", "no such file"),
        (text, "damaged|no export"),
        (other, "no table of strings"),
        (cut, "damaged|no export"),
        (columns, "no export of nsys"),
        (cells, "damaged"),
    ):
        with pytest.raises(TraceUnreadable, match=says):
            read(path)


def test_an_endless_query_is_cut_at_the_deadline(tmp_path: Path) -> None:
    """A view in the place of a table counts for ever; the clock ends it."""
    forever = (
        "CREATE VIEW endless AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n;"
        "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (globalPid, start, end, correlationId);"
    )
    path = hostile(tmp_path / "e.sqlite", forever)
    moments = iter([0.0] + [100.0] * 10)
    with sqlite3.connect(path) as made:  # enough rows that the clock is looked at
        made.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET SELECT 1, i, i + 1, i FROM endless LIMIT 200000")

    with pytest.raises(TraceUnreadable, match="not read within 30 s"):
        read(path, clock=lambda: next(moments, 100.0))


def test_a_real_window_tells_what_the_decoder_did(tmp_path: Path) -> None:
    """50 ms of a launch-bound training step on an H200 (nsys 2025.3.1, torch 2.11), trimmed to what is read."""
    path = tmp_path / "window.sqlite"
    path.write_bytes(gzip.decompress((Path(__file__).parent / "nsys_window.sqlite.gz").read_bytes()))
    (found,) = read(path)

    assert found.gpu_busy_share == pytest.approx(0.418, abs=1e-3)
    assert list(found.families)[:3] == ["gemm", "copy", "reduce"]
    assert found.parts["backward"] == pytest.approx(0.60, abs=0.01)
    assert found.launch_bound_share == pytest.approx(0.51, abs=0.01)
    assert found.kernels[0].name.startswith("nvjet_sm90")
    assert {one.part for one in found.kernels} == {"forward", "backward", "optimizer"}
    text = "\n".join(summary([found]))
    assert "passes on the GPU: backward 60%, forward 29%, optimizer 11%" in text
    assert "launches the backward pass 25%, launches the forward pass 23%" in text
