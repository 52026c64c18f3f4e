"""Flight-recorder dumps of many ranks and several groups: who is at fault, by the counts of the group concerned."""

import json
import os
import pickle
from pathlib import Path

import pytest

from perfwatch.postmortem import diagnose
from tests.autopsy.left_files import judged, ranks, recorded
from tests.probes.flight_dumps import Bomb, call, waiting, written

Groups = dict[str, tuple[str, list[int], int, int]]
PAIRS = [0, 1], [2, 3]


def job(folder: Path, groups: dict[int, Groups]) -> Path:
    """A folder with a dump of each rank, by rank its groups."""
    for rank, own in groups.items():
        (folder / f"_dump_{rank}").write_bytes(waiting(own, begun=rank))
    return folder


def two_groups(rank: int, all_of_them: tuple[int, int], pair: tuple[int, int]) -> Groups:
    """A rank of four, in the group of all and in that of its pair, each with its newest call and the newest that is over."""
    mine = PAIRS[rank // 2]
    return {"0": ("default_pg", [0, 1, 2, 3], *all_of_them), f"{5 + rank // 2}": ("TENSOR_GROUP", mine, *pair)}


def test_the_rank_that_did_not_come_is_at_fault_by_the_counts_of_that_group(tmp_path: Path) -> None:
    """Rank 3 wrote no entry at all; its peer waits in the pair's call, the others in that of all."""
    dumps = {0: two_groups(0, (8, 7), (40, 40)), 1: two_groups(1, (8, 7), (40, 40)),
             2: two_groups(2, (7, 7), (91, 90)), 3: two_groups(3, (7, 7), (90, 90))}  # fmt: skip
    verdict = judged(job(tmp_path, dumps))

    assert (verdict.state, verdict.cause) == ("hung", "stalled_collective")
    assert ranks(verdict) == [3]
    assert "rank 3 never joined all_reduce 91" in verdict.summary
    assert "group TENSOR_GROUP (6)" in verdict.evidence[0].entity
    assert "rank 3: call 90; rank 2: in call 91" in verdict.evidence[0].observed
    assert (verdict.coverage.ranks_seen, verdict.coverage.world_size) == (4, 4)


def test_a_rank_that_waits_itself_is_a_victim(tmp_path: Path) -> None:
    """The ranks of the first pair wait for rank 2, which waits for rank 3."""
    dumps = {0: two_groups(0, (8, 7), (40, 40)), 2: two_groups(2, (7, 7), (91, 90)), 3: two_groups(3, (7, 7), (90, 90))}
    verdict = judged(job(tmp_path, dumps))

    assert ranks(verdict) == [3]
    assert [link.rank for link in verdict.wait_chain] == [0, 2]


def test_a_gap_in_the_group_of_all_is_a_rank_without_a_dump(tmp_path: Path) -> None:
    """Where the dumps name no members, as those of gloo."""
    for rank in (0, 1, 3):
        (tmp_path / f"_dump_{rank}").write_bytes(waiting({"0": ("default_pg", [], 9, 8)}))
    verdict = judged(tmp_path)

    assert (verdict.cause, ranks(verdict)) == ("stalled_collective", [2])


def test_ranks_that_call_two_groups_in_another_order_wait_in_a_ring(tmp_path: Path) -> None:
    """Rank 2 is in the pair's call, rank 3 in that of all; ranks 0 and 1 wait for rank 2 and have no part in it."""
    dumps = {0: two_groups(0, (8, 7), (40, 40)), 1: two_groups(1, (8, 7), (40, 40)),
             2: two_groups(2, (7, 7), (91, 90)), 3: two_groups(3, (8, 7), (90, 90))}  # fmt: skip
    verdict = judged(job(tmp_path, dumps))

    assert (verdict.state, verdict.cause) == ("hung", "mismatched_collective")
    assert ranks(verdict) == [2, 3]
    assert "rank 2 is in all_reduce 91" in verdict.summary
    assert "ranks 0 and 1 wait for that" in verdict.summary


def test_a_rank_that_has_not_finished_what_others_have_finished_is_at_fault(tmp_path: Path) -> None:
    """Its card stands: its peers are calls ahead, although none of them could have gone on without it."""
    everyone = {rank: {"0": ("default_pg", [0, 1, 2], 60, 58)} for rank in (0, 1)}
    verdict = judged(job(tmp_path, {**everyone, 2: {"0": ("default_pg", [0, 1, 2], 60, 51)}}))

    assert ranks(verdict) == [2]
    assert verdict.owner == "gpu"
    assert "did not finish all_reduce 52" in verdict.summary


def test_an_absent_entry_is_evidence_where_no_count_can_be_told(tmp_path: Path) -> None:
    """Names that are hashes tell no order: then the dump of rank 1 only shows that it is in no call."""
    groups = {name: ("dp", [0, 1], 5, 4) for name in ("a9f3",)}
    (tmp_path / "_dump_0").write_bytes(waiting(groups))
    (tmp_path / "_dump_1").write_bytes(waiting({"a9f3": ("dp", [0, 1], 4, 4)}))
    verdict = judged(tmp_path)

    assert ranks(verdict) == [1]
    assert verdict.evidence[0].claim == "its dump has no entry of this call"


def test_a_rank_without_a_dump_is_suspected_where_all_others_have_come(tmp_path: Path) -> None:
    """And the verdict says that it rests on what is missing."""
    verdict = judged(job(tmp_path, {rank: {"0": ("default_pg", [0, 1, 2], 9, 8)} for rank in (0, 2)}))

    assert ranks(verdict) == [1]
    assert verdict.confidence < 0.8
    assert "left no dump" in verdict.summary


def test_ranks_in_different_calls_under_one_number_are_a_mismatch(tmp_path: Path) -> None:
    """Two called all_reduce, one broadcast."""
    for rank, name in enumerate(("all_reduce", "all_reduce", "broadcast")):
        (tmp_path / f"rank_{rank}.json").write_bytes(written([call(1, name, 4, over=False)], 4, 3, "[0, 1, 2]"))
    verdict = judged(tmp_path)

    assert (verdict.cause, ranks(verdict)) == ("mismatched_collective", [2])


def test_ranks_that_are_all_in_one_call_blame_the_fabric(tmp_path: Path) -> None:
    """Nobody is missing, and it did not end."""
    verdict = judged(job(tmp_path, {rank: {"0": ("default_pg", [0, 1], 9, 8)} for rank in (0, 1)}))

    assert (verdict.cause, verdict.owner, verdict.culprits) == ("wedged_collective", "fabric", ())


def test_a_dump_is_known_by_its_content_and_its_rank_by_its_groups(tmp_path: Path) -> None:
    """Names are of no help: each rank has a group that no other one has."""
    for rank, name in enumerate(("one.txt", "two.bin")):
        groups: Groups = {"0": ("default_pg", [0, 1], 9 - rank, 8), "3": ("own", [rank], 2, 2)}
        (tmp_path / name).write_bytes(waiting(groups))
    verdict = judged(tmp_path)

    assert ranks(verdict) == [1]


def test_of_two_dumps_of_one_rank_the_newer_counts_and_the_other_is_listed(tmp_path: Path) -> None:
    """As from two attempts of a job."""
    for folder, reached, moment in (("first", 3, 100), ("second", 8, 200)):
        (tmp_path / folder).mkdir()
        for rank in (0, 1):
            path = tmp_path / folder / f"_dump_{rank}"
            path.write_bytes(waiting({"0": ("default_pg", [0, 1], reached - rank, reached - 1)}))
            os.utime(path, (moment, moment))
    verdict = judged(tmp_path / "second", tmp_path / "first")

    assert "all_reduce 8" in verdict.summary
    assert any("newer dump" in one.reason for one in verdict.missing)


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps(Bomb()),
        waiting({"0": ("default_pg", [0, 1], 9, 8)})[:-20],
        b"\x80\x02" + b"(" * 100_000 + b".",
        json.dumps({"pg_config": {}, "entries": 7, "version": "2.9"}).encode(),
        b'{"pg_config": {}, "entries": [' + b"[" * 200_000,
        written([call(1, "all_reduce", 10**15, over=False)], 10**15, 3, str([5, 10**8])),
        b"\0" * 100_000,
    ],
    ids=["bomb", "torn", "deep", "wrong types", "deep JSON", "huge numbers", "nuls"],
)
def test_a_bad_file_costs_its_own_evidence_alone_and_is_listed(tmp_path: Path, content: bytes) -> None:
    """The dumps beside it tell the same as without it."""
    dumps = job(tmp_path, {rank: {"0": ("default_pg", [0, 1], 9 - rank, 8)} for rank in (0, 1)})
    (tmp_path / "bad_5").write_bytes(content)
    verdict = judged(dumps)

    assert ranks(verdict) == [1]
    assert any(one.witness == "bad_5" for one in verdict.missing)


def test_a_recording_of_files_is_judged_again_with_the_same_result(tmp_path: Path) -> None:
    """As replay does it."""
    recording = recorded(job(tmp_path, {rank: {"0": ("default_pg", [0, 1], 9 - rank, 8)} for rank in (0, 1)}))

    assert diagnose(recording.until(recording.end)) == diagnose(recording)


def older(entries: list[tuple[int, int, str, bool]], groups: dict[int, list[int]] | None) -> bytes:
    """A dump of torch 2.3 (version 1.4), or of torch 2.1 where no groups are told: the bare list.

    entries: group, number, call, and whether it is over.
    """
    made = [
        {"record_id": order, "pg_id": group, "seq_id": number, "op_id": order, "profiling_name": f"nccl:{name}", "retired": over,
         "input_sizes": [[8]], "output_sizes": [[8]], "state": "completed" if over else "started", "time_created_ns": order,
         "frames": [{"name": "step", "filename": "/srv/train.py", "line": 41}]}
        for order, (group, number, name, over) in enumerate(entries)
    ]  # fmt: skip
    return pickle.dumps(
        made if groups is None else {"entries": made, "version": "1.4", "pg_config": groups}, protocol=2
    )


def test_dumps_of_torch_2_3_are_read(tmp_path: Path) -> None:
    """Groups are those of the same ranks: rank 2 knows the pair as its number 1, rank 3 as its number 2. Sends are no collectives."""
    whole = [0, 1, 2, 3]
    for rank in whole:
        pair, number = PAIRS[rank // 2], 2 if rank == 3 else 1
        groups = {0: whole, number: pair, **({1: [3]} if rank == 3 else {})}
        calls = [(0, 6, "all_reduce", True), (number, 3, "all_gather", True), (number, 9, "send 0->1", False)]
        calls += [(number, 4, "all_gather", False)] if rank == 2 else [] if rank == 3 else [(0, 7, "all_reduce", False)]
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(older(calls, groups))
    verdict = judged(tmp_path)

    assert (verdict.cause, ranks(verdict)) == ("stalled_collective", [3])
    assert "rank 3 never joined all_gather 4 of 8 of group of ranks 2, 3" in verdict.summary


def test_dumps_of_torch_2_1_are_read(tmp_path: Path) -> None:
    """A list of calls without a word about groups: by what the others have called."""
    for rank in (0, 1, 2):
        last = [] if rank == 1 else [(0, 7, "all_reduce", False)]
        (tmp_path / f"trace_rank_{rank}").write_bytes(older([(0, 6, "all_reduce", True), *last], None))
    verdict = judged(tmp_path)

    assert (verdict.cause, ranks(verdict)) == ("stalled_collective", [1])


def test_dumps_of_torchcomms_are_read(tmp_path: Path) -> None:
    """The JSON of its hook: ranks as a bare list of numbers, no sends, counts as texts."""
    for rank in (0, 1):
        entries = [
            {**call(7, "all_reduce", 7 - rank, over=bool(rank)), "process_group": ["world", "world"], "p2p_seq_id": 0}
        ]
        status = {
            "last_enqueued_collective": str(7 - rank),
            "last_started_collective": "6",
            "last_completed_collective": "6",
        }
        config = {"world": {"desc": "world", "name": "world", "ranks": "0,1"}}
        dump = {
            "comm_lib_version": "2.28.9",
            "entries": entries,
            "pg_config": config,
            "pg_status": {"0": status},
            "version": "2.10",
        }
        (tmp_path / f"torchcomm_fr_trace_{rank}").write_text(json.dumps(dump))

    assert ranks(judged(tmp_path)) == [1]
