"""Live ranks are asked for torch's flight record through their pipes; one that cannot answer takes nothing else along."""

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perfwatch_probes.errand import Errand
from perfwatch_probes.filesystem import Absent
from perfwatch_probes.flight_recorder import (
    ANSWER_SECONDS,
    MEMORY_BYTES,
    FlightRecorderProbe,
    Rank,
    dump_paths,
    pipe_path,
    ring,
)
from perfwatch_probes.private import parse_environment
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import ProbeCall, Reading, RecordedGroup
from tests.probes.flight_dumps import Bomb, dump

pytestmark = pytest.mark.live

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


def ask(ranks: list[Rank], by_pipe: bool = True, seconds: float = ANSWER_SECONDS) -> list[Reading]:
    """As the watcher does: in a process of its own with little memory."""
    errand = Errand(lambda: FlightRecorderProbe(seconds=seconds).look(ranks, by_pipe), 20.0, MEMORY_BYTES)
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


@pytest.mark.parametrize(
    "hostile",
    [
        b"\x80\x04}" + b")" + b"\x85" * 2_000_000 + b"K\x01s.",  # a key that is hashed level by level: it crashes
        b"\x80\x04" + b"](" + b"]" * (4 * 2**20),  # it eats memory
        pickle.dumps({"version": "2.10", "entries": [{"process_group": ("0", ""), "input_sizes": [[10**5000]]}]}),
        pickle.dumps({"version": "2.10", "entries": [], "pg_config": {"0": {"name": "0", "ranks": "9" * 5000}}}),
        pickle.dumps({"version": "2.10", "entries": [{"process_group": ("\ud800", "\ud800")}]}),  # half a character
        b"\x80\x04\x8c\x03\xed\xa0\x80\x8c\x03\xed\xa0\x80\x93.",  # asks for what is called so
    ],
    ids=["crash", "memory", "huge", "digits", "half a character", "code"],
)
def test_what_one_rank_has_written_costs_no_other_rank_its_answer(tmp_path: Path, start: Start, hostile: bytes) -> None:
    """Whether reading it fails, runs out of memory or crashes."""
    ranks = [Rank(start(number, b""), number, age_seconds=60.0) for number in range(3)]
    for number, content in enumerate((dump(0), hostile, dump(1))):
        (tmp_path / f"fr_{number}").write_bytes(content)
    found = ask(ranks, by_pipe=False)

    assert [one.rank for one in found if isinstance(one, RecordedGroup) and one.rank != 1] == [0, 2]


def test_dumps_whose_reading_never_ends_leave_time_for_the_next(tmp_path: Path, start: Start) -> None:
    """A key of sixty levels, each of them twice the one below, is hashed for longer than anybody waits."""
    doubled = b"".join(b"q" + bytes([level]) + b"h" + bytes([level]) + b"\x86" for level in range(60))
    ranks = [Rank(start(number, b""), number, age_seconds=60.0) for number in range(4)]
    for number, content in enumerate([b"\x80\x02})" + doubled + b"K\x01s."] * 3 + [dump(1)]):
        (tmp_path / f"fr_{number}").write_bytes(content)
    found = ask(ranks, by_pipe=False, seconds=4.0)

    assert {one.rank for one in found if isinstance(one, RecordedGroup)} == {3}
    assert [one.outcome for one in found if isinstance(one, ProbeCall)] == ["unavailable"] * 3


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
            ring(str(tmp_path / name))
    assert (tmp_path / "victim").read_text() == ""


def test_dumps_are_looked_for_where_the_environment_says_first() -> None:
    """Then where torch writes by default, new and old."""
    environment = {"HOME": "/home/me", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/scratch/fr_"}

    assert dump_paths(environment, 3) == [
        "/scratch/fr_3",
        "/home/me/.cache/torch/comm_lib_trace_rank_3",
        "/tmp/nccl_trace_rank_3",
    ]


def test_where_a_rank_wrote_its_dump_is_known_when_it_has_ended() -> None:
    """What is recorded of its environment tells as much as the whole of it."""
    for environment in (
        {"HOME": "/home/me"},
        {"HOME": "/home/me", "XDG_CACHE_HOME": "/scratch/cache"},
        {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/scratch/fr_"},
        {"TORCH_FR_DUMP_TEMP_FILE": "/scratch/fr_"},
        {"PERFWATCH_AGENT_DIR": "/dev/shm/place"},
    ):
        whole = b"\0".join(f"{name}={value}".encode() for name, value in environment.items())

        assert dump_paths(parse_environment(whole), 3) == dump_paths(environment, 3)


def test_a_rank_that_the_agent_has_armed_is_asked_in_the_folder_of_the_agent() -> None:
    """What it has set inside the process is not to be read from outside; what the user has set comes first."""
    armed = {"PERFWATCH_AGENT_DIR": "/dev/shm/place"}
    own = {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "/scratch/p_", "TORCH_FR_DUMP_TEMP_FILE": "/scratch/d_"}

    assert (pipe_path(armed, 3), dump_paths(armed, 3)[0]) == (
        "/dev/shm/place/fr_pipe_3.pipe",
        "/dev/shm/place/fr_rank_3",
    )
    assert (pipe_path(armed | own, 3), dump_paths(armed | own, 3)[0]) == ("/scratch/p_3.pipe", "/scratch/d_3")
