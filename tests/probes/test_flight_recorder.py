"""torch's flight recorder: what a dump says, that it is asked for through a pipe, and that a hostile one does no harm."""

import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perfwatch.probes.errand import Errand
from perfwatch.probes.filesystem import Absent
from perfwatch.probes.flight_record import parse
from perfwatch.probes.flight_recorder import MEMORY_BYTES, FlightRecorderProbe, Rank, dump_paths, ring
from perfwatch.probes.probe import Unavailable
from perfwatch.probes.readings import ProbeCall, Reading, RecordedGroup

RECORDED = Path(__file__).parent / "nccl"


def dump(rank: int) -> bytes:
    """What rank 0 or 1 wrote on an H200, torch 2.11, while rank 1 slept; the newest 70 entries."""
    return (RECORDED / f"fr_torch2.11_hung_rank{rank}.pickle").read_bytes()


def test_a_dump_says_how_far_a_rank_has_come_in_each_group() -> None:
    """Both have completed 3198; rank 0 has called 19 more, which rank 1 has not."""
    (zero,), (one,) = (parse(dump(rank), 600 + rank, rank, "pipe") for rank in (0, 1))

    assert (zero.enqueued, zero.completed, one.enqueued, one.completed) == (3217, 3198, 3198, 3198)
    assert (zero.group, zero.description, zero.members) == ("0", "default_pg", (0, 1))
    waits = next(operation for operation in zero.operations if operation.sequence == 3199)
    assert (waits.name, waits.dtypes, waits.state) == ("all_reduce", "Float", "scheduled")
    assert waits.input_elements == int(waits.input_sizes)


def test_json_says_the_same_as_pickle() -> None:
    """torch's debug server gives JSON."""
    whole = pickle.loads(dump(0))

    assert parse(json.dumps(whole).encode(), 600, 0, "pipe") == parse(dump(0), 600, 0, "pipe")


def test_gloo_never_says_completed() -> None:
    """Its entries stay "scheduled"; that they are retired tells."""
    entry = {"record_id": 4, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": 5, "is_p2p": False,
             "profiling_name": "gloo:all_reduce", "state": "scheduled", "retired": True}  # fmt: skip
    status = {"0": {"last_enqueued_collective": "5", "last_completed_collective": "5"}}
    content = pickle.dumps({"version": "2.10", "entries": [entry], "pg_config": {}, "pg_status": status})
    (group,) = parse(content, 9, 1, "pipe")

    assert (group.operations[0].name, group.operations[0].state) == ("all_reduce", "completed")
    assert (group.enqueued, group.completed) == (5, 5)


def test_the_programs_own_lines_are_kept() -> None:
    """torch's and the standard library's are not."""
    frames = [
        {"name": "all_reduce", "filename": "/venv/lib/python3.12/site-packages/torch/distributed/x.py", "line": 1},
        {"name": "average", "filename": "/home/me/train.py", "line": 23},
    ]
    entry = {"process_group": ("0", ""), "collective_seq_id": 1, "profiling_name": "nccl:all_reduce", "frames": frames}
    (group,) = parse(pickle.dumps({"version": "2.10", "entries": [entry]}), 9, 1, "pipe")

    assert [(frame.function, frame.line) for frame in group.operations[0].frames] == [("average", 23)]


class Bomb:
    """A pickle that would run a command."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/perfwatch-was-here",)


def test_a_pickle_that_asks_for_code_is_refused_before_anything_runs() -> None:
    """The job's files are untrusted."""
    with pytest.raises(Unavailable, match="system"):
        parse(pickle.dumps({"version": "2.10", "entries": [Bomb()]}), 9, 1, "pipe")
    assert not Path("/tmp/perfwatch-was-here").exists()


def test_a_torn_dump_is_refused_wherever_it_ends() -> None:
    """A rank that is killed while it writes."""
    whole = dump(0)
    for length in range(0, len(whole) - 1, 501):
        with pytest.raises(Unavailable):
            parse(whole[:length], 9, 1, "pipe")


@pytest.mark.parametrize("content", [b"\x80\x04]\x94.", b"[1, 2]", b"not a dump", b"{}", pickle.dumps({"entries": 3})])
def test_what_is_no_dump_is_refused(content: bytes) -> None:
    """A list, a text, an empty object."""
    with pytest.raises(Unavailable):
        parse(content, 9, 1, "pipe")


def test_another_version_is_named() -> None:
    """A reader that guesses is worse than one that says that it cannot."""
    with pytest.raises(Unavailable, match=r"version 3\.0") as raised:
        parse(pickle.dumps({"version": "3.0", "entries": []}), 9, 1, "pipe")
    assert "torchfrtrace" in raised.value.advice


def test_strange_types_in_every_field_are_survived() -> None:
    """Nothing that a dump holds is believed to be what it should be."""
    strange: list[Any] = [None, -1, 2**80, "x" * 10**5, [[[]]], {"a": {}}, b"\xff", 1.5, float("nan"), True]
    names = [*pickle.loads(dump(0))["entries"][-1], "pg_name"]
    for value in strange:
        entry = dict.fromkeys(names, value)
        parse(pickle.dumps({"version": "2.10", "entries": [entry, value]}), 9, 1, "pipe")
        parse(pickle.dumps({"version": "2.10", "entries": [], "pg_config": value, "pg_status": value}), 9, 1, "pipe")


ANALYZER = """
import json, pickle, sys
from torch.distributed.flight_recorder.components import builder, config_manager
arguments = config_manager.JobConfig().parse_args(["--allow-incomplete-ranks", "/nowhere"])
whole = [pickle.load(open(path, "rb")) for path in sys.argv[1:]]
first = max(min(entry["collective_seq_id"] for entry in one["entries"]) for one in whole)
details = {}
for rank, one in enumerate(whole):  # it wants both to begin with the same call
    entries = [entry for entry in one["entries"] if entry["collective_seq_id"] >= first]
    details[f"rank{rank}"] = {**one, "entries": entries, "rank": rank, "host_name": "here"}
incomplete = [call for call in builder.build_db(details, arguments, "2.10").collectives if call.missing_ranks]
call = min(incomplete, key=lambda call: call.collective_seq_id)
print()
print(json.dumps([call.collective_seq_id, call.collective_name, str(call.input_sizes), sorted(call.missing_ranks)]))
"""


def test_it_agrees_with_torchs_own_analyzer(tmp_path: Path) -> None:
    """Who is behind, and in which call, on the same dumps."""
    paths = [tmp_path / str(rank) for rank in (0, 1)]
    for rank, path in enumerate(paths):
        path.write_bytes(dump(rank))
    theirs = subprocess.run(
        [sys.executable, "-c", ANALYZER, *map(str, paths)], capture_output=True, text=True, timeout=120
    )  # in a process of its own: one that has torch loaded looks like a job
    if "ModuleNotFoundError" in theirs.stderr:
        pytest.skip("this torch has no analyzer, or there is none: 2.9 and newer")
    sequence, name, sizes, missing = json.loads(theirs.stdout.splitlines()[-1])

    ours = {rank: parse(dump(rank), 600 + rank, rank, "pipe")[0] for rank in (0, 1)}
    waits = min((one for one in ours[0].operations if one.state != "completed"), key=lambda one: one.sequence)
    assert waits.sequence == sequence
    assert f"nccl:{waits.name}" == name
    assert f"[[{waits.input_sizes}]]" == sizes
    assert sorted(rank for rank, one in ours.items() if (one.enqueued or 0) < waits.sequence) == missing


RANK_PROGRAM = """
import os, sys
path, dump, target = sys.argv[1:]
os.mkfifo(path, 0o666)
pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
keep = os.open(path, os.O_WRONLY)
print("ready", flush=True)
import select
while True:
    select.select([pipe], [], [])
    os.read(pipe, 10)
    content = open(dump, "rb").read()
    with open(target, "wb") as out:
        out.write(content[: len(content) // 2])
        out.flush()
        out.write(content[len(content) // 2 :])
"""
Start = Callable[[int, bytes], int]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a stand-in for a rank: a byte in its pipe, and it writes its dump."""
    started: list[subprocess.Popen[str]] = []

    def begin(rank: int, content: bytes) -> int:
        (tmp_path / f"content{rank}").write_bytes(content)
        process = subprocess.Popen(
            [sys.executable, "-c", RANK_PROGRAM, f"{tmp_path}/pipe_{rank}.pipe", f"{tmp_path}/content{rank}",
             f"{tmp_path}/fr_{rank}"],
            env={"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{tmp_path}/pipe_", "TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/fr_"},
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline()
        return process.pid

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def ask(ranks: list[Rank], by_pipe: bool = True) -> list[Reading]:
    """As the watcher does: in a process of its own with little memory."""
    errand = Errand(lambda: FlightRecorderProbe().look(ranks, by_pipe), 20.0, MEMORY_BYTES)
    while (found := errand.poll()) is None:
        time.sleep(0.01)
    return found


def test_ranks_are_asked_through_their_pipes(start: Start) -> None:
    """And asked again they write anew."""
    ranks = [Rank(start(rank, dump(rank)), rank) for rank in (0, 1)]
    for _ in range(2):
        found = ask(ranks)

        assert sorted((g.rank, g.enqueued, g.origin) for g in found if isinstance(g, RecordedGroup)) == [
            (0, 3217, "pipe"),
            (1, 3198, "pipe"),
        ]


def test_one_rank_that_can_be_read_is_read_where_seven_cannot(start: Start, tmp_path: Path) -> None:
    """Each of the others says why; nothing is made up for them."""
    (tmp_path / "pipe_1.pipe").write_text("a file, not a pipe")
    hostile = pickle.dumps({"version": "2.10", "entries": [Bomb()]})
    ranks = [Rank(start(0, dump(0)), 0), Rank(start(2, hostile), 2)]
    ranks += [Rank(ranks[0].pid, number) for number in (1, 3, 4, 5, 6, 7)]
    found = ask(ranks)

    assert [one.rank for one in found if isinstance(one, RecordedGroup)] == [0]
    refused = {one.entity: one.reason for one in found if isinstance(one, ProbeCall)}
    assert set(refused) == {f"rank {number}" for number in range(1, 8)}
    assert "no pipe" in refused["rank 1"]
    assert (tmp_path / "pipe_1.pipe").read_text() == "a file, not a pipe"
    assert "system" in refused["rank 2"]


def test_a_dump_that_a_rank_wrote_by_itself_is_found(tmp_path: Path, start: Start) -> None:
    """On a watchdog's timeout; one from before the process began is another run's."""
    pid = start(0, b"")
    (tmp_path / "fr_0").write_bytes(dump(0))
    (group,) = ask([Rank(pid, 0, age_seconds=60.0)], by_pipe=False)

    assert isinstance(group, RecordedGroup)
    assert (group.origin, group.enqueued) == ("file", 3217)
    os.utime(tmp_path / "fr_0", (time.time() - 600, time.time() - 600))
    with pytest.raises(Absent):
        ask([Rank(pid, 0, age_seconds=60.0)], by_pipe=False)


def test_a_dump_of_100_mib_is_not_read(tmp_path: Path, start: Start) -> None:
    """Its size is looked at first."""
    pid = start(0, b"")
    with (tmp_path / "fr_0").open("wb") as file:
        file.truncate(100 * 2**20)
    with pytest.raises(Unavailable, match="100 MiB"):
        ask([Rank(pid, 0, age_seconds=60.0)], by_pipe=False)


def test_a_pickle_that_eats_memory_takes_only_its_own_process(start: Start, tmp_path: Path) -> None:
    """Opcodes of one byte become gigabytes of lists."""
    pid = start(0, b"")
    (tmp_path / "fr_0").write_bytes(b"\x80\x04" + b"](" + b"]" * (4 * 2**20))
    with pytest.raises(Unavailable):
        ask([Rank(pid, 0, age_seconds=60.0)], by_pipe=False)


def test_a_pickle_nested_too_deep_takes_only_its_own_process(start: Start, tmp_path: Path) -> None:
    """As a key of a dict it is hashed, level by level."""
    pid = start(0, b"")
    deep = b"\x80\x04}" + b")" + b"\x85" * 2_000_000 + b"K\x01s."
    (tmp_path / "fr_0").write_bytes(deep)
    with pytest.raises(Unavailable):
        ask([Rank(pid, 0, age_seconds=60.0)], by_pipe=False)


def test_a_job_that_was_not_armed_is_told_how(tmp_path: Path) -> None:
    """Nothing in its environment, no pipe."""
    ours = subprocess.Popen(["sleep", "60"], env={"PATH": os.environ["PATH"]})
    try:
        with pytest.raises(Unavailable, match="no pipe") as raised:
            ask([Rank(ours.pid, 0)])
    finally:
        ours.kill()
        ours.wait()
    assert "perfwatch run" in raised.value.advice


def test_nothing_is_written_into_a_link_or_a_file(tmp_path: Path) -> None:
    """Whoever plants one gets nothing."""
    (tmp_path / "victim").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "victim")
    for name in ("victim", "link"):
        with pytest.raises(Unavailable):
            ring(tmp_path / name)
    assert (tmp_path / "victim").read_text() == ""


def test_dumps_are_looked_for_where_the_environment_says_first() -> None:
    """Then where torch writes by default, new and old."""
    environment = {"HOME": "/home/me", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/scratch/fr_"}

    assert dump_paths(environment, 3) == [
        "/scratch/fr_3",
        "/home/me/.cache/torch/comm_lib_trace_rank_3",
        "/tmp/nccl_trace_rank_3",
    ]
