"""torch's flight recorder: what a dump says, and that a hostile one does no harm."""

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perfwatch_probes.flight_record import parse
from perfwatch_probes.probe import Unavailable
from tests.probes.flight_dumps import Bomb, coalesced, dump, waiting


def test_a_dump_says_how_far_a_rank_has_come_in_each_group() -> None:
    """Both have completed 3198; rank 0 has called 19 more, which rank 1 has not."""
    (zero,), (one,) = (parse(dump(rank), 600 + rank, rank, "pipe") for rank in (0, 1))

    assert (zero.enqueued, zero.completed, one.enqueued, one.completed) == (3217, 3198, 3198, 3198)
    assert (zero.group, zero.description, zero.members) == ("0", "default_pg", (0, 1))
    waits = next(operation for operation in zero.operations if operation.sequence == 3199)
    assert (waits.name, waits.dtypes, waits.state) == ("all_reduce", "Float", "scheduled")
    assert waits.input_elements == int(waits.input_sizes)


def test_a_group_without_entries_has_its_own_counts() -> None:
    """A rank that has called nothing new writes no entry: the order of creation tells which counts are of which group."""
    groups = {"0": ("default_pg", [0, 1], 7, 7), "5": ("TENSOR", [0, 1], 88, 88), "12": ("EXPERT", [0, 1], 31, 31)}
    read = {one.group: one for one in parse(waiting(groups, begun=1), 9, 0, "file")}

    assert {name: (one.enqueued, one.completed) for name, one in read.items()} == {
        "0": (7, 7),
        "5": (88, 88),
        "12": (31, 31),
    }


def test_counts_that_belong_to_no_group_for_sure_are_left_out() -> None:
    """A group's name can be the local number of another one, which says nothing of it."""
    groups = {"0": ("default_pg", [0, 1], 7, 7), "5": ("TENSOR", [0, 1], 88, 88)}
    status = {"0": {"last_enqueued_collective": 1}, "5": {"last_enqueued_collective": 2}, "9": {}}
    read = parse(waiting(groups, pg_status=status), 9, 0, "file")

    assert [one.enqueued for one in read] == [None, None]


def test_json_says_the_same_as_pickle() -> None:
    """torch's debug server gives JSON."""
    whole = pickle.loads(dump(0))

    assert parse(json.dumps(whole).encode(), 600, 0, "pipe") == parse(dump(0), 600, 0, "pipe")


def test_what_torch_makes_of_several_is_one_collective_and_a_send_is_none() -> None:
    """Both ranks count alike, from the barrier before to the one after; three reductions as one keep their name and their sizes."""
    (zero,), (one,) = (parse(coalesced(rank), 600 + rank, rank, "pipe") for rank in (0, 1))
    called = [
        [(each.sequence, each.name) for each in group.operations if not each.point_to_point] for group in (zero, one)
    ]

    assert called[0] == called[1]
    assert called[0] == [
        (18, "all_reduce_barrier"),
        (19, "all_reduce"),
        (20, "ALLGATHER_coalesced"),
        (21, "REDUCE_SCATTER_coalesced"),
        (22, "allreduce_coalesced"),
        (23, "all_to_all"),
        (24, "all_reduce_barrier"),
    ]
    assert (zero.enqueued, zero.completed, one.enqueued, one.completed) == (24, 24, 24, 24)
    assert next(each for each in zero.operations if each.sequence == 22).input_sizes == "1048576,1048576,1048576"


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


@pytest.mark.parametrize("value", [10**5000, "9" * 5000, "\ud800"], ids=["huge", "digits", "half a character"])
def test_what_cannot_be_written_as_text_is_left_out_wherever_it_stands(value: Any) -> None:
    """The rest of the dump is read, and what is read can be recorded."""
    names = [*pickle.loads(dump(0))["entries"][-1], "pg_name"]
    entries = [{"process_group": ("0", ""), "collective_seq_id": 7}, *({"process_group": ("0", ""), name: value} for name in names),
               {"process_group": ("0", ""), "input_sizes": [[value]], "input_dtypes": [value]},
               {"process_group": (value, value)}, {"frames": [{"name": value, "filename": value, "line": value}]}]  # fmt: skip
    config = {"0": {"name": "0", "ranks": value, "desc": value}, "1": {"name": value}}
    groups = parse(pickle.dumps({"version": "2.10", "entries": entries, "pg_config": config}), 9, 1, "pipe")

    assert next(one for one in groups if one.group == "0").enqueued == 7
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(groups))
    with pytest.raises(Unavailable):
        parse(pickle.dumps({"version": value, "entries": []}), 9, 1, "pipe")


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x04}(X\x07\x00\x00\x00version" + b"]" * 200_000 + b"a" * 199_999 + b"u.",
        b"{" + b'"version": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b'{"version": ' + b"9" * 5000 + b"}",
    ],
    ids=["pickle", "JSON", "digits"],
)
def test_what_is_nested_too_deep_is_refused(content: bytes) -> None:
    """Python does not write it as text either."""
    with pytest.raises(Unavailable):
        parse(content, 9, 1, "pipe")


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


@pytest.mark.live
def test_it_agrees_with_torchs_own_analyzer(tmp_path: Path) -> None:
    """Who is behind, and in which call, on the same dumps."""
    paths = [tmp_path / str(rank) for rank in (0, 1)]
    for rank, path in enumerate(paths):
        path.write_bytes(dump(rank))
    # In a process of its own: one that has torch loaded looks like a job.
    theirs = subprocess.run(
        [sys.executable, "-c", ANALYZER, *map(str, paths)], capture_output=True, text=True, timeout=120
    )
    if "ModuleNotFoundError" in theirs.stderr:
        pytest.skip("this torch has no analyzer, or there is none: 2.9 and newer")
    sequence, name, sizes, missing = json.loads(theirs.stdout.splitlines()[-1])

    ours = {rank: parse(dump(rank), 600 + rank, rank, "pipe")[0] for rank in (0, 1)}
    waits = min((one for one in ours[0].operations if one.state != "completed"), key=lambda one: one.sequence)
    assert waits.sequence == sequence
    assert f"nccl:{waits.name}" == name
    assert f"[[{waits.input_sizes}]]" == sizes
    assert sorted(rank for rank, one in ours.items() if (one.enqueued or 0) < waits.sequence) == missing
