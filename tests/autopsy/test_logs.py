"""Logs: the first end in time over all ranks is the culprit, the rest are its consequences."""

import gzip
import io
import json
import os
import time
from datetime import datetime, timezone
from pathlib import Path

import pytest

from perfwatch.autopsy.logs import WORDS, parsed, read_log
from perfwatch.autopsy.watch import FolderWatch, keep_copies
from perfwatch.postmortem import diagnose
from perfwatch.recording.kept import remove_session
from perfwatch.report.exits import exit_code
from perfwatch_probes.deadline import Inline
from perfwatch_probes.readings import FailureLine, SavedCheckpoint
from tests.autopsy.left_files import judged, of_log, ranks, recorded
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


def test_a_rank_that_was_killed_precedes_those_that_lost_it(tmp_path: Path) -> None:
    """Unless the launcher killed it long after."""
    lost = "[rank1]: RuntimeError: [/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.3]:41214\n"
    failed = (
        "2026-11-29 10:{minute}:03,000 ERROR api: failed (exitcode: -9) local_rank: 3 (pid: 4242) of binary: python\n"
    )
    at_once, later = tmp_path / "at_once", tmp_path / "later"
    for folder, minute in ((at_once, 10), (later, 12)):
        folder.mkdir()
        (folder / "launcher.log").write_text(failed.format(minute=minute))
        (folder / "rank_1.log").write_text("2026-11-29 10:10:01,000 INFO step 7 loss 3.2\n" + lost)

    assert judged(at_once).sub_cause == "sigkill"
    assert judged(later).sub_cause == "lost_peer"


def test_an_end_of_its_own_precedes_the_watchdogs_of_the_others(tmp_path: Path) -> None:
    """Rank 3 ran out of memory ten minutes before; its line is further down in the same file."""
    oom = (
        '[rank3]: Traceback (most recent call last):\n[rank3]:   File "/srv/job/model.py", line 12, in forward\n'
        "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has 79.10 GiB\n"
    )
    verdict = of_log(tmp_path, WATCHDOG.format(rank=0) + oom)

    assert (verdict.cause, verdict.sub_cause, ranks(verdict)) == ("out_of_memory", "cuda_out_of_memory", [3])
    assert verdict.culprits[0].frame == "forward (model.py:12)"


TORN_HANDOVER = """Traceback (most recent call last):
  File "/app/train.py", line 49, in load
    for batch in loader:
  File "/opt/lib/python3.12/site-packages/torch/utils/data/dataloader.py", line 1291, in _try_get_data
    data = self._data_queue.get(timeout=timeout)
  File "/opt/lib/python3.12/multiprocessing/reduction.py", line 157, in recvfds
    msg, ancdata, flags, addr = sock.recvmsg(1, socket.CMSG_SPACE(bytes_size))
ConnectionResetError: [Errno 104] Connection reset by peer
"""


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("", "dead_data_worker"),
        ("ERROR: Unexpected segmentation fault encountered in worker.\n", "crashed_data_worker"),
    ],
)
def test_a_batch_that_was_torn_on_its_way_tells_of_its_worker(tmp_path: Path, said: str, name: str) -> None:
    """The connection that was lost is the worker's, and no other rank's."""
    (tmp_path / "log").write_text(STEPS + said + TORN_HANDOVER)
    verdict = judged(tmp_path)

    assert verdict.sub_cause == name


def test_a_line_without_a_time_is_from_before_those_below_it(tmp_path: Path) -> None:
    """NCCL's own words bear none; what torch says of them does."""
    said = "gpu-3:4711:4800 [2] NCCL WARN NET/IB : Got completion from peer 10.0.0.2<41000> with error 12\n"

    assert of_log(tmp_path, said + WATCHDOG.format(rank=2)).sub_cause == "nccl_error"


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


def test_another_line_of_an_error_gives_it_its_rank(tmp_path: Path) -> None:
    """A kernel's assertion has no prefix, what Python says of it has; of two ranks it may be either's."""
    assertion = "Indexing.cu:1308: indexSelectLargeIndex: block: [5,0,0], thread: [1,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\n"
    of_rank = "[rank{rank}]: RuntimeError: CUDA error: device-side assert triggered\n"
    one = of_log(tmp_path, STEPS + assertion + of_rank.format(rank=1), "one.log")
    two = of_log(tmp_path, STEPS + assertion + of_rank.format(rank=1) + of_rank.format(rank=2), "two.log")

    assert ranks(one) == [1]
    assert ranks(two) == []


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


def test_a_program_that_trains_after_an_error_got_over_it(tmp_path: Path) -> None:
    """One from before the first step takes a few lines; unless later words tell that a rank was lost, and nothing else why."""
    missing = "Traceback (most recent call last):\nModuleNotFoundError: No module named 'apex'\n"
    epochs = "".join(f"epoch {number} loss 3.2\n" for number in range(5))
    lost = WATCHDOG.format(rank=1)

    assert of_log(tmp_path, missing + epochs, "a.log").sub_cause is None
    assert of_log(tmp_path, epochs + missing + epochs, "b.log").sub_cause == "missing_module"
    assert of_log(tmp_path, missing + epochs + KEY_ERROR, "c.log").sub_cause == "python_exception"
    assert of_log(tmp_path, missing + epochs + lost, "d.log").sub_cause == "missing_module"


def test_a_log_that_tells_of_no_end_is_inconclusive(tmp_path: Path) -> None:
    """Missing is not zero."""
    verdict = of_log(tmp_path, STEPS)

    assert (verdict.state, exit_code(verdict)) == ("inconclusive", 50)
    assert any("how it ended" in one.reason for one in verdict.missing)


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
    assert of_log(tmp_path, STEPS + lines + STEPS, "c.log").sub_cause is None
    assert of_log(tmp_path, STEPS + lines + KEY_ERROR, "b.log").sub_cause == "python_exception"


@pytest.mark.parametrize(
    ("raw", "rank", "text"),
    [
        ("[rank3]: ValueError: x", 3, "ValueError: x"),
        ("[default1]:[rank5]: ValueError: x", 5, "ValueError: x"),
        ("[rank: 2] ValueError: x", 2, "ValueError: x"),
        ("[1,3]<stderr>:ValueError: x", 3, "ValueError: x"),
        ("trainer-1  | ValueError: x", None, "ValueError: x"),
        ("2026-11-29 10:00:00,123 ZeroDivisionError: x", None, "ZeroDivisionError: x"),
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


@pytest.mark.parametrize(
    "line",
    [
        "2026-11-29 10:00:00,123 - train - WARNING - could not save: [Errno 28] No space left on device",
        "[rank0]:[W1129 10:00:00.123456789 TCPStore.cpp:125] recvValue failed: Connection reset by peer",
        "[2026-11-29 10:00:00,123] [WARNING] [stage3.py:1171:step] CUDA out of memory, the cache is flushed",
        "2026-11-29 10:00:00.123456: W tensorflow/core/framework/op_kernel.cc:1830] RESOURCE_EXHAUSTED: OOM when allocating tensor",
        "[NeMo W 2026-11-29 10:00:00 nemo_logging:405] CUDA error: out of memory",
        "node-7:41:88 [0] NCCL INFO Call to connect returned Connection refused, retrying",
    ],
)
def test_a_line_below_the_level_of_errors_is_no_end(tmp_path: Path, line: str) -> None:
    """Whatever its words: the program wrote it, and went on."""
    assert of_log(tmp_path, f"{STEPS}{line}\n").sub_cause is None


def test_words_in_the_source_of_a_traceback_are_no_message(tmp_path: Path) -> None:
    """The line below a frame is what the program would have said elsewhere."""
    source = """Traceback (most recent call last):
  File "/srv/job/train.py", line 41, in <module>
    except RuntimeError("CUDA out of memory"):
  File "/srv/job/train.py", line 50, in fit
    KeyError: "CUDA error"
KeyError: 'lr'
"""
    assert of_log(tmp_path, STEPS + source).sub_cause == "python_exception"


def test_an_exception_that_python_ignored_is_no_end(tmp_path: Path) -> None:
    """It is raised while objects are removed, and ends nothing."""
    ignored = """Exception ignored in: <function Pool.__del__ at 0x7f3c>
Traceback (most recent call last):
  File "/usr/lib/python3.11/multiprocessing/pool.py", line 271, in __del__
    self._change_notifier.put(None)
OSError: [Errno 9] Bad file descriptor
"""
    assert of_log(tmp_path, STEPS + ignored).sub_cause is None


def test_an_exception_is_told_with_the_frame_that_makes_it_a_particular_one(tmp_path: Path) -> None:
    """Of whatever class: what torch raises while it loads a file is a checkpoint that does not load."""
    loading = """Traceback (most recent call last):
  File "/srv/job/train.py", line 41, in <module>
    state = torch.load("last.pt")
  File "/opt/venv/lib/python3.11/site-packages/torch/serialization.py", line 1024, in _legacy_load
    magic_number = pickle_module.load(f)
EOFError: Ran out of input
"""
    verdict = of_log(tmp_path, STEPS + loading)

    assert verdict.sub_cause == "checkpoint_mismatch"
    assert "EOFError: Ran out of input" in verdict.summary


@pytest.mark.parametrize(
    ("place", "said", "name"),
    [
        ("multiprocessing/connection.py, 383, _recv: raise EOFError", "EOFError", "dead_data_worker"),
        (
            "multiprocessing/connection.py, 250, recv: buf = self._recv_bytes()",
            "ConnectionResetError: [Errno 104] Connection reset by peer",
            "dead_data_worker",
        ),
        (
            "torch/distributed/rendezvous.py, 143, _env_rendezvous_handler: store = TCPStore(address, port)",
            "ValueError: host not found: Name or service not known",
            "rendezvous_timeout",
        ),
        (
            "job/net.py, 9, ask: return socket.getaddrinfo(host, port)",
            "ValueError: Name or service not known",
            "unreachable_service",
        ),
        (
            "job/gather.py, 157, all: pickle.loads(bytes(buffer))",
            "_pickle.UnpicklingError: invalid load key",
            "python_exception",
        ),
        (
            "job/tools.py, 5, state: pickle.load(file)",
            "_pickle.UnpicklingError: invalid load key",
            "checkpoint_mismatch",
        ),
    ],
)
def test_a_frame_tells_what_the_same_exception_is(tmp_path: Path, place: str, said: str, name: str) -> None:
    """A pipe without its other end, a launcher's address, a message that is no file; and the look-alikes."""
    where, source = place.split(": ", 1)
    file, line, function = where.split(", ")
    frame = f'  File "/opt/{file}", line {line}, in {function}\n    {source}\n'

    assert of_log(tmp_path, f"{STEPS}Traceback (most recent call last):\n{frame}{said}\n").sub_cause == name


def test_what_python_passes_over_is_no_end(tmp_path: Path) -> None:
    """What a logger's handler raises, with the message that it was given, and what is run when a process exits."""
    trace = "Traceback (most recent call last):\n"
    at_exit = f'{trace}  File "/usr/lib/multiprocessing/util.py", line 300, in _run_finalizers\n    finalizer()\nOSError: [Errno 16] busy\n'
    logged = f"--- Logging error ---\n{trace}OSError: [Errno 28] No space left on device\nMessage: 'CUDA error'\nArguments: ()\n"

    pins = (
        trace
        + '  File "/opt/torch/utils/data/_utils/pin_memory.py", line 28, in _pin_memory_loop\nConnectionRefusedError: [Errno 111] no\n'
    )

    assert of_log(tmp_path, STEPS + at_exit + logged + pins).sub_cause is None
    assert of_log(tmp_path, STEPS + logged + KEY_ERROR).sub_cause == "python_exception"


def test_of_a_chain_of_exceptions_the_one_that_says_more_counts(tmp_path: Path) -> None:
    """Where the first is of no kind; else the first is the reason."""
    chain = "{}\n\nDuring handling of the above exception, another exception occurred:\n\nTraceback (most recent call last):\n{}\n"
    stops, limit, full = (
        "StopIteration",
        "RuntimeError: received 0 items of ancdata",
        "OSError: [Errno 28] No space left on device",
    )

    assert of_log(tmp_path, STEPS + chain.format(stops, limit)).sub_cause == "resource_limit"
    assert of_log(tmp_path, STEPS + chain.format(full, limit)).sub_cause == "disk_full"
    assert of_log(tmp_path, STEPS + f"{stops}\n{limit}\n").sub_cause == "python_exception"


MARKED = {
    "rich": (
        "╭───────── Traceback (most recent call last) ─────────╮\n"
        "│ /srv/job/train.py:19 in <module>                     │\n"
        "│                                                      │\n"
        "│   18 │   model.load_state_dict(old)                  │\n"
        "│ ❱ 19 │   main()                                      │\n"
        "│ {place} in {function}{pad}│\n"
        "│ ❱ 40 │   return inner()                              │\n"
        "╰──────────────────────────────────────────────────────╯\n"
        "RuntimeError: no good\n"
    ),
    "ipython": (
        "RuntimeError                Traceback (most recent call last)\n"
        "<ipython-input-12-abc> in <module>\n     18     model.load_state_dict(old)\n---> 19     main()\n\n"
        "{place} in {function}(f)\n     39             x\n---> 40             return inner()\n\n"
        "RuntimeError: no good\n"
    ),
}


@pytest.mark.parametrize("form", MARKED)
def test_tracebacks_that_mark_the_source_among_its_neighbours_are_read(tmp_path: Path, form: str) -> None:
    """The frame of the exception counts, and not what stands beside the line that failed."""
    line = ":40" if form == "rich" else ""
    torn = MARKED[form].format(place=f"/v/torch/serialization.py{line}", function="load", pad=" ")
    other = MARKED[form].format(place=f"/v/torch/nn/linear.py{line}", function="forward", pad=" ")

    assert of_log(tmp_path, STEPS + torn).sub_cause == "checkpoint_mismatch"
    assert of_log(tmp_path, STEPS + other).sub_cause == "runtime_error"


def test_what_a_worker_raised_counts_and_not_that_its_parent_raised_it_again(tmp_path: Path) -> None:
    """Replicas, loaders; a group of exceptions is told by the first of them; a wait that was given up by what it was for."""
    raised = (
        "RuntimeError: Caught RuntimeError in replica 0 on device 0.\nOriginal Traceback (most recent call last):\n"
        '  File "/srv/job/m.py", line 3, in forward\n    return a @ b\n{}\n'
    )
    group = (
        "  + Exception Group Traceback (most recent call last):\n  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)\n"
        '  +-+---------------- 1 ----------------\n    | Traceback (most recent call last):\n    |   File "m.py", line 3, in f\n'
        "    |     x()\n    | torch.OutOfMemoryError: CUDA out of memory.\n"
    )
    shapes = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (3x4 and 5x6)"
    waited = (
        '  File "/v/multiprocessing/queues.py", line 114, in get\n    raise Empty\n_queue.Empty\n\n'
        "During handling of the above exception, another exception occurred:\n\nRuntimeError: DataLoader timed out after 30 seconds\n"
    )

    assert of_log(tmp_path, STEPS + raised.format(shapes)).sub_cause == "shape_mismatch"
    assert of_log(tmp_path, STEPS + raised.format("RuntimeError: odd")).sub_cause == "runtime_error"
    assert of_log(tmp_path, STEPS + group).sub_cause == "cuda_out_of_memory"
    assert of_log(tmp_path, STEPS + waited).sub_cause == "data_timeout"


def test_a_thread_of_its_own_may_end_while_the_job_trains_on(tmp_path: Path) -> None:
    """So may what is printed and not raised; without steps after it, it ended the job."""
    thread = "Exception in thread Thread-5:\n" + KEY_ERROR
    printed = "Error: command buffer exited with error status.\n"
    few = "step 300 loss 2.1\nstep 301 loss 2.0\nstep 302 loss 2.0\nstep 303 loss 1.9\n"

    assert of_log(tmp_path, STEPS + thread).sub_cause == "python_exception"
    assert of_log(tmp_path, STEPS + thread + few).sub_cause is None
    assert of_log(tmp_path, STEPS + printed + few).sub_cause is None
    assert of_log(tmp_path, STEPS + KEY_ERROR + few).sub_cause == "python_exception"


def test_records_that_share_a_line_are_told_apart(tmp_path: Path) -> None:
    """A launcher's words behind a bar, on a terminal whose lines were joined."""
    api = "torch.distributed.elastic.multiprocessing.api"
    joined = f"  0%| | 0/2 [00:00<?, ?it/s]WARNING:{api}:Sending process 8 closing signal SIGTERM    "
    failed = f"ERROR:{api}:failed (exitcode: -9) local_rank: 4 (pid: 9) of binary: /bin/python    Traceback (most recent call last):\n"

    assert of_log(tmp_path, STEPS + joined + failed).sub_cause == "sigkill"
    assert of_log(tmp_path, STEPS + joined + "\n").sub_cause is None


def test_the_launchers_summary_says_more_than_its_exception(tmp_path: Path) -> None:
    """Even where nothing else tells how the rank ended."""
    error = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
    summary = "Root Cause (first observed failure):\n[0]:\n  rank      : 7 (local_rank: 7)\n  exitcode  : {} (pid: 33)\n  traceback : x\n"

    assert of_log(tmp_path, error + summary.format(-9)).sub_cause == "sigkill"
    assert of_log(tmp_path, error + summary.format(1)).sub_cause == "failed_child"
    assert of_log(tmp_path, error).sub_cause == "failed_child"


def test_a_launcher_that_tells_the_signal_later_says_more(tmp_path: Path) -> None:
    """mpirun prints first that a process failed; a number of its own stands for itself."""
    failed = "1 process returned\na non-zero exit code. Per user-direction, the job has been aborted.\n"
    signal = "mpirun noticed that process rank 1 with PID 20114 on node gpu12 exited on signal 9 (Killed).\n"

    assert of_log(tmp_path, failed + signal).sub_cause == "sigkill"
    assert of_log(tmp_path, failed).sub_cause == "failed_child"
    assert of_log(tmp_path, "rank 2 exited with code 1\n" + signal).sub_cause == "failed_child"


def test_a_traceback_whose_every_line_is_relayed_has_no_level_of_its_own(tmp_path: Path) -> None:
    """A parent that logs what its child prints calls all of it information; a logger that tells of an exception prefixes one line."""
    relayed = "".join(f"2026-11-29 10:00:00,123 - INFO - [child] {line}\n" for line in KEY_ERROR.splitlines())
    torn = (
        "Exception ignored in: <function Loader.__del__ at 0x1>\nTraceback (most recent call last):\n    self.close()\n"
    )
    one = "2026-11-29 10:00:00,123 - INFO - KeyError: 'label'\n"

    assert of_log(tmp_path, STEPS + relayed).sub_cause == "python_exception"
    assert of_log(tmp_path, STEPS + torn + relayed).sub_cause == "python_exception"
    assert of_log(tmp_path, STEPS + one).sub_cause is None


def test_the_very_last_lines_are_read_whatever_is_in_them(tmp_path: Path) -> None:
    """The search for words passes over them in the middle of a log."""
    line = "operator not implemented for 'Half'\n"
    assert not any(word in line.encode() for word in WORDS)

    assert of_log(tmp_path, STEPS + line).sub_cause == "dtype_mismatch"
    assert of_log(tmp_path, STEPS + line + STEPS * 4).sub_cause is None


def test_ranks_that_succeeded_have_no_end_of_their_launcher(tmp_path: Path) -> None:
    """It waits for the other hosts, and some have gone: unless its own ranks failed."""
    said = "INFO:torch.distributed.elastic.agent.server.api:Local worker group finished ({}). Waiting 300 seconds for other agents\n"
    waits = "Traceback (most recent call last):\nRuntimeError: Socket Timeout\n"

    assert of_log(tmp_path, STEPS + said.format("SUCCEEDED") + waits).sub_cause is None
    assert of_log(tmp_path, STEPS + said.format("FAILED") + waits).sub_cause == "rendezvous_timeout"


def test_hosts_before_each_line_are_no_part_of_it(tmp_path: Path) -> None:
    """As pdsh and its like write them; they are told apart by standing before nearly every line."""
    lines = "".join(f"node-{number % 2}: step {number} loss 3.2\n" for number in range(40))
    verdict = of_log(tmp_path, f"{lines}node-1: ValueError: bad batch\nnode-0: Connection reset by peer\n")

    assert verdict.sub_cause == "python_exception"


def test_a_bar_does_not_hide_what_the_shell_says_of_it(tmp_path: Path) -> None:
    """The shell writes behind it, on the same line."""
    assert of_log(tmp_path, f"{STEPS} 12%|#2   | 120/1000 [02:01<14:50,  1.01s/it]Killed\n").sub_cause == "sigkill"


def test_the_months_of_torch_have_one_digit_or_two() -> None:
    """It writes them without a zero."""
    march, october = (
        parsed(f"[E{day} 02:07:08.5 ProcessGroupNCCL.cpp:607] x".encode(), 2025).at for day in ("321", "1021")
    )

    assert march == datetime(2025, 3, 21, 2, 7, 8, 500000, tzinfo=timezone.utc).timestamp()
    assert october == datetime(2025, 10, 21, 2, 7, 8, 500000, tzinfo=timezone.utc).timestamp()


def test_numbers_of_srun_are_ranks(tmp_path: Path) -> None:
    """Where nearly every line has one."""
    lines = "".join(f"{number % 12:2}: step {number} loss 3.2\n" for number in range(40))
    verdict = of_log(tmp_path, lines + " 2: ValueError: bad batch\n")
    of_hosts = of_log(tmp_path, lines + " 2: [rank17]: ValueError: bad batch\n", "b.log")

    assert ranks(verdict) == [2]
    assert ranks(of_hosts) == [17]


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
    assert "3 attempts ended, each by python_exception; each time in rank 1" in verdict.summary
    assert "every attempt began at step 0: no log tells of a checkpoint that was saved" in verdict.summary
    assert [one.entity for one in verdict.evidence if one.witness == "attempts"] == [
        f"attempt {number} of 3" for number in (1, 2, 3)
    ]


def test_a_node_on_which_each_attempt_ended_is_suspect(tmp_path: Path) -> None:
    """As the launcher's summaries name it."""
    for attempt in (0, 1):
        folder = tmp_path / f"attempt_{attempt}"
        folder.mkdir()
        (folder / "launcher.log").write_text(STEPS + TORCHRUN)

    assert "each time on node-b: suspect that node" in judged(tmp_path).summary


def attempt(
    folder: Path, hour: int, error: str, minutes: int = 30, first: int = 0, last: int = 400, saved: int | None = None
) -> Path:
    """A folder as one attempt leaves it: a log with time stamps from an hour on, steps, and what ended it."""
    folder.mkdir(parents=True)
    lines = [f"resumed from /ckpt/step_{first}.pt"] * bool(first)
    lines += [f"step {first + number * (last - first) // 19} loss 2.5" for number in range(20)]
    lines += [f"saved checkpoint /ckpt/step_{saved}.pt"] if saved is not None else []
    stamp = datetime(2026, 11, 29, hour, tzinfo=timezone.utc).timestamp()
    each = 60.0 * minutes / len(lines)
    clock = (datetime.fromtimestamp(stamp + each * number, timezone.utc) for number in range(len(lines) + 1))
    text = "".join(f"{at:%Y-%m-%d %H:%M:%S},000 {line}\n" for at, line in zip(clock, [*lines, error], strict=True))
    (folder / "train.log").write_text(text)
    return folder


ILLEGAL = "[rank{rank}]: torch.AcceleratorError: CUDA error: an illegal memory access was encountered"


def test_folders_of_different_times_are_attempts(tmp_path: Path) -> None:
    """In the order of their times, whatever their names; each with its end, its life and its steps."""
    late = attempt(tmp_path / "a", 12, ILLEGAL.format(rank=1), first=800, last=900)
    early = attempt(tmp_path / "b", 10, "ValueError: bad shard", saved=400)
    between = attempt(
        tmp_path / "c", 11, "RuntimeError: NCCL error in: x.cpp:1, unhandled system error", first=400, saved=800
    )
    told = [one for one in judged(late, early, between).evidence if one.witness == "attempts"]

    assert [one.claim for one in told] == [
        f"ended by {end}" for end in ("python_exception", "nccl_error", "cuda_illegal_access")
    ]
    assert told[0].entity == "attempt 1 of 3, 2026-11-29 10:00:00Z"
    assert "lived 30 min 00 s; steps 0 to 400; saved a checkpoint at step 400" in told[0].observed


def test_attempts_without_progress_do_not_make_sense_again(tmp_path: Path) -> None:
    """The same end from the same checkpoint: to start it again, which that end alone would allow, leads nowhere."""
    error = "requests.exceptions.ConnectionError: Max retries exceeded with url: /api"
    folders = [attempt(tmp_path / str(hour), hour, error, first=400, last=500, saved=400) for hour in (10, 11, 12)]
    one, all_three = judged(folders[0]), judged(*folders)

    assert (one.retry, all_three.retry) == ("yes", "after fixing")
    assert "every attempt began at step 400: no newer checkpoint was saved" in all_three.summary


def test_steps_that_count_anew_in_each_epoch_tell_nothing(tmp_path: Path) -> None:
    """A progress bar begins at 0 in every epoch, and so does a step beside an epoch."""
    for hour in (10, 11):
        folder = attempt(tmp_path / str(hour), hour, KEY_ERROR.splitlines()[-1])
        text = (folder / "train.log").read_text().replace("step ", "epoch 7 step ")
        (folder / "train.log").write_text(text.replace("epoch 7 step 0 ", " 0%|  | 0/1000 [00:00<?, ?it/s] "))

    assert "began at step" not in judged(tmp_path).summary


def test_attempts_that_advance_may_be_started_again(tmp_path: Path) -> None:
    """Each began at the checkpoint that the one before it saved."""
    error = "slurmstepd: error: *** JOB 77 ON node-3 CANCELLED AT 2026-11-29T10:30:00 DUE TO PREEMPTION ***"
    folders = [
        attempt(tmp_path / f"{n}", 10 + n, error, first=400 * n, last=400 * n + 380, saved=400 * n + 400)
        for n in range(3)
    ]
    verdict = judged(*folders)

    assert (verdict.sub_cause, verdict.retry) == ("preempted", "yes")
    assert "no newer checkpoint" not in verdict.summary


def test_a_checkpoint_that_is_saved_and_not_loaded_is_told(tmp_path: Path) -> None:
    """Its step is above the one at which the next attempt began."""
    folders = [attempt(tmp_path / str(hour), hour, KEY_ERROR.splitlines()[-1], saved=400) for hour in (10, 11)]

    assert "although a checkpoint of step 400 was saved: it is not loaded" in judged(*folders).summary


def test_many_short_attempts_are_a_restart_storm(tmp_path: Path) -> None:
    """By how long they lived; two are none."""
    folders = [attempt(tmp_path / str(hour), hour, "ValueError: bad shard", minutes=2) for hour in (10, 11, 12, 13)]
    verdict = judged(*folders)

    assert "4 attempts ended, each by python_exception" in verdict.summary
    assert "restart storm: they lived for 2 min 00 s on average" in verdict.summary
    assert "restart storm" not in judged(*folders[:2]).summary


def test_hosts_of_one_attempt_are_no_attempts(tmp_path: Path) -> None:
    """Their times overlap; and ranks of which each only wrote its last words are not attempts either."""
    for host in ("node-a", "node-b"):
        attempt(tmp_path / "hosts" / host, 10, "ValueError: bad shard")
    for rank in (0, 1):
        folder = tmp_path / "ranks" / f"rank_{rank}"
        folder.mkdir(parents=True)
        (folder / "err.log").write_text(
            f"2026-11-29 10:0{rank}:00,000 x\n2026-11-29 10:0{rank}:30,000 ERROR ValueError: bad\n"
        )

    assert "attempts" not in judged(tmp_path / "hosts").summary
    assert "attempts" not in judged(tmp_path / "ranks").summary


def test_a_launchers_log_tells_where_the_ranks_were_started_again(tmp_path: Path) -> None:
    """The lines before that are of the attempt before, in one and the same file."""
    again = (
        "I1129 10:00:0{n}.000000 400 torch/distributed/elastic/agent/server/api.py:900] "
        "[default] Worker group FAILED. {n}/2 attempts left; will restart worker group\n"
    )
    text = KEY_ERROR + again.format(n=2) + KEY_ERROR + again.format(n=1) + STEPS + "ValueError: bad shard\n"
    told = [one for one in of_log(tmp_path, text).evidence if one.witness == "attempts"]

    assert [one.claim for one in told] == ["ended by python_exception"] * 3


def test_a_requeued_job_goes_on_in_the_same_file(tmp_path: Path) -> None:
    """If steps follow what slurmd said of its end; other last words do not make another attempt."""
    gone = "".join(
        f"slurmstepd: error: *** {what} ON node-3 CANCELLED AT 2026-11-29T10:00:01 DUE TO PREEMPTION ***\n"
        for what in ("STEP 77.0", "JOB 77")
    )
    gone += "srun: error: node-3: tasks 0-7: Terminated\n"
    once, twice = of_log(tmp_path, STEPS + gone), of_log(tmp_path, STEPS + gone + STEPS + KEY_ERROR)

    assert (once.sub_cause, "attempts" in once.summary) == ("preempted", False)
    assert [one.claim for one in twice.evidence if one.witness == "attempts"] == [
        "ended by preempted",
        "ended by python_exception",
    ]


def test_a_kernels_log_is_shared_out_by_time(tmp_path: Path) -> None:
    """The OOM kill of the first attempt does not end the second."""
    folders = [attempt(tmp_path / str(hour), hour, "Killed") for hour in (10, 11)]
    kernel = tmp_path / "dmesg"
    kernel.write_text(
        "[Sun Nov 29 09:00:00 2026] booted\n"
        "[Sun Nov 29 10:30:01 2026] Memory cgroup out of memory: Killed process 812 (python) total-vm:99kB\n"
        "[Sun Nov 29 12:30:00 2026] still here\n"
    )
    told = [one.claim for one in judged(*folders, kernel).evidence if one.witness == "attempts"]

    assert told == ["ended by cgroup_out_of_memory", "ended by sigkill"]


def test_checkpoint_files_tell_how_far_it_came(tmp_path: Path) -> None:
    """By name and time; what is in them is not read."""
    folder = attempt(tmp_path / "run", 10, "ValueError: bad shard")
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    (checkpoints / "step_400.pt").write_bytes(b"PK\x03\x04" + bytes(26) + b"step_400/data.pkl" + bytes(64))
    recording = recorded(folder, checkpoints)
    (saved,) = [one.reading for one in recording.records if isinstance(one.reading, SavedCheckpoint)]

    assert (saved.step, saved.size_bytes) == (400, 111)
    assert diagnose(recording).missing == ()


class Watched:
    """A folder under watch, with a clock that the test turns."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.seconds = folder / "jobs", 0.0
        self.folder.mkdir()
        self.watch = FolderWatch(str(self.folder), folder / "spool", Inline(), lambda: self.seconds, lambda: 1.0)

    def turn(self, seconds: float = 2.0) -> list[tuple[str, str | None]]:
        """One look after so long: the jobs that have ended, and by what."""
        self.seconds += seconds
        return [(one.name, one.verdict.sub_cause or one.verdict.cause) for one in self.watch.turn()]

    def write(self, job: str, text: str, mode: str = "a") -> None:
        """The log of a job grows, or begins anew."""
        (self.folder / job).mkdir(exist_ok=True)
        with (self.folder / job / "train.log").open(mode) as log:
            log.write(text)


def test_a_watched_folder_tells_each_end_once_nothing_changes_any_more(tmp_path: Path) -> None:
    """One job ended, the other trains on; what ended before the watch began is not told."""
    jobs = Watched(tmp_path)
    jobs.write("old", STEPS + KEY_ERROR)
    assert jobs.turn() == []

    jobs.write("one", STEPS + KEY_ERROR)
    jobs.write("other", STEPS)
    assert jobs.turn() == []
    jobs.write("other", STEPS)
    assert jobs.turn(40.0) == [("one", "python_exception")]
    assert jobs.turn(60.0) == []


def test_what_a_restart_removes_is_judged_before(tmp_path: Path) -> None:
    """Its log begins anew at once; the dumps of the ranks are removed: the copies tell."""
    jobs = Watched(tmp_path)
    jobs.turn()
    jobs.write("job", STEPS + WATCHDOG.format(rank=0))
    for rank in (0, 1):
        dump = waiting({"0": ("default_pg", [0, 1], 91 - rank, 90)})
        (jobs.folder / "job" / f"_dump_{rank}").write_bytes(dump)
    assert jobs.turn() == []
    for rank in (0, 1):
        (jobs.folder / "job" / f"_dump_{rank}").unlink()
    jobs.write("job", "step 0 loss 3.0\n", "w")
    jobs.seconds += 2.0
    (ended,) = jobs.watch.turn()

    assert (ended.verdict.sub_cause, ranks(ended.verdict)) == ("nccl_timeout", [1])
    assert jobs.turn(60.0) == []


def test_of_a_large_log_only_the_end_is_copied(tmp_path: Path) -> None:
    """And links, pipes and what lies elsewhere are left alone."""
    jobs = Watched(tmp_path)
    jobs.turn()
    jobs.write("job", STEPS * 1000 + KEY_ERROR)
    (jobs.folder / "job" / "link.log").symlink_to("/etc/passwd")
    os.mkfifo(jobs.folder / "job" / "pipe.log")
    jobs.turn()
    copies = [path for path in (tmp_path / "spool").rglob("*") if path.is_file()]

    assert [path.name for path in copies] == ["train.log"]
    assert copies[0].stat().st_size <= 2**20
    assert copies[0].stat().st_mode & 0o077 == 0
    assert jobs.turn(40.0) == [("job", "python_exception")]


def test_last_lines_and_dumps_are_kept_without_secrets(tmp_path: Path) -> None:
    """Beside the session, for a reader; other files are not."""
    copies = tmp_path / "spool" / "job"
    copies.mkdir(parents=True)
    secret = "hf_" + "aBcDeFgHiJkLmNoPqRsTuVwXyZ01234567"
    (copies / "train.log").write_text(STEPS * 1000 + f"login with {secret}\n" + KEY_ERROR)
    (copies / "_dump_0").write_bytes(waiting({"0": ("default_pg", [0, 1], 9, 8)}))
    (copies / "model.bin").write_bytes(bytes(range(256)) * 100)
    session = tmp_path / "session"
    kept = {path.name: path.read_bytes() for path in keep_copies(copies, session)}

    assert set(kept) == {"train.log", "_dump_0"}
    assert kept["train.log"].endswith(KEY_ERROR.encode())
    assert len(kept["train.log"]) < 70_000
    assert secret.encode() not in kept["train.log"]
    assert (session / "left" / "job" / "train.log").stat().st_mode & 0o077 == 0


def test_what_was_kept_beside_a_session_is_removed_with_it(tmp_path: Path) -> None:
    """It is no file of the user's: a watch that never ends would fill the disk."""
    copies, session = tmp_path / "spool" / "job", tmp_path / "session"
    copies.mkdir(parents=True)
    session.mkdir(mode=0o700)
    (copies / "train.log").write_text(KEY_ERROR)
    keep_copies(copies, session)
    remove_session(session)

    assert not session.exists()


def test_the_watchdogs_own_counts_name_the_rank_that_never_came(tmp_path: Path) -> None:
    """Of the right group: rank 2 is asked to dump, and had called less often; another group is level."""
    caught = (
        "[rank{rank}]:[E1129 10:10:0{rank}.000000 ProcessGroupNCCL.cpp:2] [PG ID 1 PG GUID 5(TENSOR) Rank {rank}] Timeout at "
        "NCCL work: 91, last enqueued NCCL work: 91, last completed NCCL work: 90.\n"
    )
    asked = (
        "[rank2]:[E1129 10:10:09.000000 ProcessGroupNCCL.cpp:3] [PG ID 1 PG GUID 5(TENSOR) Rank 2] Received a dump signal due to a "
        "collective timeout from rank 0 and we will try our best to dump the debug info. Last enqueued NCCL work: 90, last completed 90.\n"
    )
    level = (
        "[rank{rank}]:[E1129 10:10:0{rank}.5 x.cpp:3] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] "
        "Timeout at NCCL work: 7, last enqueued NCCL work: 7\n"
    )
    text = (
        STEPS
        + "".join(caught.format(rank=rank) + level.format(rank=rank) for rank in (0, 1))
        + asked
        + level.format(rank=2)
    )
    verdict = of_log(tmp_path, text)

    assert (verdict.sub_cause, ranks(verdict)) == ("nccl_timeout", [2])
    assert "by the watchdogs' own counts (last enqueued: 90 and 91) rank 2 is at fault" in verdict.summary


def test_the_only_rank_without_a_time_out_is_at_fault(tmp_path: Path) -> None:
    """gloo's ranks raise when they have waited; the one that they waited for was killed without a word. Not so if half are silent."""
    for rank in range(4):
        waited = f"[rank{rank}]: RuntimeError: [x/unbound_buffer.cc:78] Timed out waiting 600000ms for recv operation to complete\n"
        (tmp_path / f"rank_{rank}.log").write_text(STEPS + waited * (rank != 2))
    verdict = judged(tmp_path)
    (tmp_path / "rank_2.log").write_text("")
    empty = judged(tmp_path)
    (tmp_path / "rank_1.log").write_text(STEPS)

    assert ranks(empty) == [2]
    assert verdict.confidence < 0.8
    assert (verdict.sub_cause, ranks(verdict)) == ("nccl_timeout", [2])
    assert "by the logs (no time-out there) rank 2 is at fault" in verdict.summary
    assert "at fault" not in judged(tmp_path).summary


@pytest.mark.parametrize(
    "entry",
    [
        {"log": "{line}\n", "stream": "stderr", "time": "2026-11-29T10:00:00.5Z"},
        {"__REALTIME_TIMESTAMP": "1795946400500000", "_HOSTNAME": "node-7", "MESSAGE": "{line}"},
        {"level": "error", "ts": 1795946400.5, "msg": "{line}"},
    ],
    ids=["docker", "journald", "structured"],
)
def test_logs_whose_lines_are_json_are_read(tmp_path: Path, entry: dict[str, str]) -> None:
    """The text and the time of each entry."""
    key = next(name for name, value in entry.items() if str(value).startswith("{line}"))
    (tmp_path / "job.log").write_text(
        "".join(json.dumps({**entry, key: line}) + "\n" for line in KEY_ERROR.splitlines())
    )
    recording = recorded(tmp_path / "job.log")
    (failure,) = [one.reading for one in recording.records if isinstance(one.reading, FailureLine)]

    assert (failure.text, failure.logged_at) == ("KeyError: 'label'", 1795946400.5)
    assert failure.frame is not None
    assert failure.frame.line == 33


def test_a_traceback_within_one_entry_is_read(tmp_path: Path) -> None:
    """As structlog and the like write it; an entry that is torn is left as it is."""
    entry = {"event": "training failed", "level": "error", "timestamp": "2026-11-29T10:00:00Z", "exception": KEY_ERROR}
    verdict = of_log(tmp_path, json.dumps({"event": "step 1"}) + "\n" + json.dumps(entry) + '\n{"event": "torn\n')

    assert (verdict.sub_cause, verdict.culprits[0].frame) == ("python_exception", "main (train.py:33)")
