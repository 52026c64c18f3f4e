"""Logs: the first end in time over all ranks is the culprit, the rest are its consequences."""

import gzip
import io
import time
from datetime import datetime, timezone
from pathlib import Path

import pytest

from perfwatch.autopsy.logs import WORDS, parsed, read_log
from perfwatch.report.exits import exit_code
from tests.autopsy.left_files import judged, of_log, ranks
from tests.autopsy.test_failures import SAID
from tests.probes.flight_dumps import waiting

STEPS = "".join(f"step {number} loss {3 - number / 1000:.3f}\n" for number in range(200))
KEY_ERROR = """Traceback (most recent call last):
  File "/srv/job/train.py", line 41, in <module>
    main()
  File "/srv/job/train.py", line 33, in main
    batch = next(batches)
  File "/opt/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 701, in __next__
    data = self._next_data()
KeyError: 'label'
"""
WATCHDOG = (
    "[rank{rank}]:[E1129 10:10:00.{rank}00000 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=91, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600012 milliseconds before timing out.\n"
    "[rank{rank}]:[E1129 10:10:00.{rank}50000 ProcessGroupNCCL.cpp:621] To avoid data inconsistency, the process is taken down.\n"
    "terminate called after throwing an instance of 'c10::DistBackendError'\n"
)
TORCHRUN = """W1129 10:00:09.000000 400 torch/distributed/elastic/api.py:897] Sending process 411 closing signal SIGTERM
E1129 10:00:09.200000 400 torch/distributed/elastic/api.py:869] failed (exitcode: -9) local_rank: 1 (pid: 412) of binary: python
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-29_10:00:08
  host      : node-b
  rank      : 5 (local_rank: 1)
  exitcode  : -9 (pid: 412)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 412
============================================================
"""


def test_a_traceback_gives_the_line_of_the_program(tmp_path: Path) -> None:
    """The innermost frame that is no library's."""
    verdict = of_log(tmp_path, STEPS + KEY_ERROR)

    assert (verdict.state, verdict.cause, verdict.sub_cause, verdict.retry) == (
        "gone",
        "crashed",
        "python_exception",
        "after fixing",
    )
    assert verdict.culprits[0].frame == "main (train.py:33)"
    assert "KeyError: 'label'" in verdict.summary
    assert exit_code(verdict) == 41


def test_the_first_rank_that_failed_is_the_culprit_and_not_those_that_lost_it(tmp_path: Path) -> None:
    """By time over all files, as torchrun leaves them."""
    for rank in (0, 1, 2):
        (tmp_path / "attempt_0" / str(rank)).mkdir(parents=True)
        peers = f"2026-11-29 10:00:0{5 + rank},000 - ERROR - RuntimeError: Connection closed by peer [10.0.0.3]:41214\n"
        own = f"2026-11-29 10:00:07,000 - ERROR - started\n{KEY_ERROR}" if rank == 1 else STEPS + peers
        (tmp_path / "attempt_0" / str(rank) / "stderr.log").write_text(own)
    verdict = judged(tmp_path)

    assert ranks(verdict) == [1]
    assert verdict.sub_cause == "python_exception"
    assert any(one.entity.startswith("rank 0") and "went away" in one.claim for one in verdict.evidence)


def test_of_watchdogs_the_first_speaks_and_the_dumps_name_the_culprit(tmp_path: Path) -> None:
    """Ranks 0 and 2 gave up; rank 1 never came, and its dump says so."""
    (tmp_path / "job.log").write_text(STEPS + WATCHDOG.format(rank=0) + WATCHDOG.format(rank=2))
    for rank in (0, 1, 2):
        (tmp_path / f"_dump_{rank}").write_bytes(waiting({"0": ("default_pg", [0, 1, 2], 91 - (rank == 1), 90)}))
    verdict = judged(tmp_path)

    assert (verdict.state, verdict.cause, verdict.sub_cause) == ("gone", "crashed", "nccl_timeout")
    assert ranks(verdict) == [1]
    assert "by the flight recorders rank 1 is at fault" in verdict.summary
    assert [one.cause for one in verdict.findings] == ["stalled_collective"]


def test_an_end_of_its_own_precedes_the_watchdogs_of_the_others(tmp_path: Path) -> None:
    """Rank 3 ran out of memory ten minutes before; its line is further down in the same file."""
    oom = (
        '[rank3]: Traceback (most recent call last):\n[rank3]:   File "/srv/job/model.py", line 12, in forward\n'
        "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has 79.10 GiB\n"
    )
    verdict = of_log(tmp_path, WATCHDOG.format(rank=0) + oom)

    assert (verdict.cause, verdict.sub_cause, ranks(verdict)) == ("out_of_memory", "cuda_out_of_memory", [3])
    assert verdict.culprits[0].frame == "forward (model.py:12)"


def test_what_breaks_while_a_job_is_torn_down_is_no_culprit(tmp_path: Path) -> None:
    """A rank that raises a minute after the watchdogs only follows."""
    late = "[rank1]:[E1129 10:12:00.000000 logging.cpp:1] x\n[rank1]: FileNotFoundError: [Errno 2] No such file or directory: '/tmp/x'\n"
    verdict = of_log(tmp_path, WATCHDOG.format(rank=0) + late)

    assert verdict.sub_cause == "nccl_timeout"


def test_the_kernel_explains_what_the_launcher_only_saw(tmp_path: Path) -> None:
    """torchrun tells of SIGKILL; the kernel's log of that node, why."""
    (tmp_path / "torchrun.log").write_text(STEPS + TORCHRUN)
    kernel = "[Sun Nov 29 10:00:07 2026] Memory cgroup out of memory: Killed process 412 (python) total-vm:9912kB, anon-rss:812kB\n"
    (tmp_path / "dmesg.txt").write_text(kernel)
    verdict = judged(tmp_path)

    assert (verdict.cause, verdict.sub_cause, verdict.retry) == (
        "out_of_memory",
        "cgroup_out_of_memory",
        "after fixing",
    )
    assert (verdict.culprits[0].rank, verdict.culprits[0].pid) == (5, 412)


def test_a_launchers_summary_names_the_rank(tmp_path: Path) -> None:
    """Where it is all that there is: and that is not sure."""
    verdict = of_log(tmp_path, STEPS + TORCHRUN)

    assert (verdict.cause, verdict.sub_cause) == ("killed", "sigkill")
    assert (verdict.culprits[0].rank, verdict.culprits[0].pid, verdict.culprits[0].host) == (5, 412, "node-b")
    assert verdict.confidence < 0.8


def test_an_end_that_the_program_got_over_does_not_count(tmp_path: Path) -> None:
    """Steps were logged after it."""
    verdict = of_log(tmp_path, KEY_ERROR + STEPS + "Killed\n")

    assert verdict.sub_cause == "sigkill"


def test_a_log_that_tells_of_no_end_is_inconclusive(tmp_path: Path) -> None:
    """Missing is not zero."""
    verdict = of_log(tmp_path, STEPS)

    assert (verdict.state, exit_code(verdict)) == ("inconclusive", 50)
    assert any("no end" in one.reason for one in verdict.missing)


def test_a_rank_of_which_no_pid_is_known_is_never_shown_with_one(tmp_path: Path) -> None:
    """In the recording a negative number stands for it; nobody can attach to that."""
    verdict = of_log(tmp_path, STEPS, "rank_3.log")
    failed = of_log(tmp_path, STEPS + "[rank3]: " + KEY_ERROR.splitlines()[-1] + "\n", "rank_4.log")

    assert verdict.wait_chain == ()
    assert "-" not in "".join(verdict.next).replace("flight-recorder", "")
    assert [one.pid for one in failed.culprits] == [0]


def test_a_loss_that_was_nan_to_the_end_is_a_hint(tmp_path: Path) -> None:
    """Of less weight than any error."""
    lines = "".join(f"step {number} | loss = nan\n" for number in range(50))

    assert of_log(tmp_path, STEPS + lines, "a.log").sub_cause == "nan_guard"
    assert of_log(tmp_path, STEPS + lines + KEY_ERROR, "b.log").sub_cause == "python_exception"


@pytest.mark.parametrize(
    ("raw", "rank", "text"),
    [
        ("[rank3]: ValueError: x", 3, "ValueError: x"),
        ("[default1]:[rank5]: ValueError: x", 1, "ValueError: x"),
        ("2026-11-29T10:00:00.123456789Z stderr F ValueError: x", None, "ValueError: x"),
        ("2026-11-29 10:00:00,123 - train - ERROR - ValueError: x", None, "ValueError: x"),
        ("[pod/job-0/main] 2026-11-29T10:00:00Z ValueError: x", None, "ValueError: x"),
        ('{"log":"ValueError: x\\n","stream":"stderr","time":"2026-11-29T10:00:00.1Z"}', None, "ValueError: x"),
        ("(RayTrainWorker pid=4242, ip=10.0.0.3) ValueError: x", None, "ValueError: x"),
        ("\x1b[31m[rank2]:\x1b[0m ValueError: x", 2, "ValueError: x"),
        ("[rank99999999]: ValueError: x", None, "ValueError: x"),
    ],
)
def test_what_stands_before_a_line_is_taken_off(raw: str, rank: int | None, text: str) -> None:
    """Ranks, times, hosts, levels and colours, in any order."""
    line = parsed(raw.encode(), 2026)

    assert (line.rank, line.text) == (rank, text)


def test_the_months_of_torch_have_one_digit_or_two() -> None:
    """It writes them without a zero."""
    march, october = (
        parsed(f"[E{day} 02:07:08.5 ProcessGroupNCCL.cpp:607] x".encode(), 2025).at for day in ("321", "1021")
    )

    assert march == datetime(2025, 3, 21, 2, 7, 8, 500000, tzinfo=timezone.utc).timestamp()
    assert october == datetime(2025, 10, 21, 2, 7, 8, 500000, tzinfo=timezone.utc).timestamp()


def test_numbers_of_srun_are_ranks(tmp_path: Path) -> None:
    """Where nearly every line has one."""
    lines = "".join(f"{number % 4}: step {number} loss 3.2\n" for number in range(40))
    verdict = of_log(tmp_path, lines + "2: ValueError: bad batch\n")

    assert ranks(verdict) == [2]


def test_carriage_returns_of_a_bar_are_line_ends(tmp_path: Path) -> None:
    """As tqdm leaves them in a file."""
    bar = "".join(f"\r{number}%|####| {number}/100 [00:01<00:02, 3.1it/s]" for number in range(100))
    verdict = of_log(tmp_path, bar + "\r" + KEY_ERROR)

    assert verdict.sub_cause == "python_exception"


def test_a_compressed_log_is_read(tmp_path: Path) -> None:
    """And one that unpacks to far more than its size is not."""
    (tmp_path / "a").write_bytes(gzip.compress((STEPS + KEY_ERROR).encode()))
    (tmp_path / "b").write_bytes(gzip.compress(b"\0" * 2**24 + b"a" * 2**24))
    verdict = judged(tmp_path)

    assert verdict.sub_cause == "python_exception"
    assert any(one.witness == "b" for one in verdict.missing)


@pytest.mark.parametrize("line", [line for lines in SAID.values() for line in lines])
def test_no_end_is_passed_over_by_the_search(line: str) -> None:
    """The words that are searched for occur in each of them."""
    found = read_log(io.BytesIO(f"{STEPS}{line}\n".encode()), "log", 2026, None, float("inf")).failures

    assert found, [word for word in WORDS if word in line.encode()]


def test_hostile_logs_are_survived(tmp_path: Path) -> None:
    """NUL bytes, no line end at all, control characters, numbers of a thousand digits."""
    (tmp_path / "a.log").write_bytes(b"\0\0\0step 1\0\n" * 50 + b"x" * 3_000_000)
    (tmp_path / "b.log").write_bytes(b"[rank" + b"9" * 5000 + b"]: Killed process " + b"9" * 5000 + b" (python)\n")
    (tmp_path / "c.log").write_bytes(b"ValueError: \x1b]0;owned\x07\x1b[2J\xff\xfe \xe2\x80\xae end\n")
    verdict = judged(tmp_path)

    assert verdict.sub_cause == "python_exception"
    assert not {"\x1b", "\x07"} & {*verdict.summary}


def test_a_million_lines_take_seconds_and_no_memory(tmp_path: Path) -> None:
    """The end of such a log is found; of a million errors the first and the last are kept."""
    path = tmp_path / "big.log"
    path.write_text("step 1 loss 3.2 lr 1e-4 tokens/s 41234\n" * 1_000_000 + KEY_ERROR)
    began = time.monotonic()
    verdict = judged(path)
    path.write_text("".join(f"ValueError: bad sample {number}\n" for number in range(300_000)))
    errors = judged(path)

    assert verdict.sub_cause == errors.sub_cause == "python_exception"
    assert time.monotonic() - began < 60


def test_attempts_of_one_job_are_one_story(tmp_path: Path) -> None:
    """What ended each, and that it was the same rank: the verdict is on the last one."""
    for attempt, error in enumerate((KEY_ERROR, KEY_ERROR, "ValueError: bad shard\n")):
        for rank in (0, 1):
            folder = tmp_path / "run" / f"attempt_{attempt}" / str(rank)
            folder.mkdir(parents=True)
            (folder / "stderr.log").write_text(STEPS + (error if rank == 1 else ""))
    verdict = judged(tmp_path)

    assert "ValueError: bad shard" in verdict.summary
    assert verdict.summary.endswith("3 attempts ended, each by python_exception, each time in rank 1")
    assert [one.entity for one in verdict.evidence if one.witness == "attempts"] == ["attempt 0", "attempt 1"]


def test_a_node_on_which_each_attempt_ended_is_suspect(tmp_path: Path) -> None:
    """As the launcher's summaries name it."""
    for attempt in (0, 1):
        folder = tmp_path / f"attempt_{attempt}"
        folder.mkdir()
        (folder / "launcher.log").write_text(STEPS + TORCHRUN)

    assert "each time on node-b: suspect that node" in judged(tmp_path).summary
