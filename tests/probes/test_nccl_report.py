"""What NCCL's RAS service answers, by version: recorded on H200 with two ranks, and lines made from its format strings.

2.28.9 is NVIDIA's own build; the other versions were built from their sources, of which src/ras was not touched.
"""

import pytest

from perfwatch_probes.nccl_report import parse
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import Communicator, GroupMember
from tests.probes.ras_answers import ras_answer

# What NCCL 2.24 and 2.25 call their one counter, over all kinds of collectives; later ones have a counter for each kind.
COUNTERS = {
    "2.24.3": "collective", "2.25.1": "collective", "2.26.6": "AllReduce", "2.27.7": "AllReduce", "2.28.9": "AllReduce",
    "2.30.7": "AllReduce",
}  # fmt: skip
VERSIONS = pytest.mark.parametrize("version", COUNTERS)
WITH_JSON = pytest.mark.parametrize("version", ["2.28.9", "2.30.7"])


def recorded(name: str) -> list[Communicator]:
    """The communicators of a recorded answer."""
    return parse(ras_answer(name))


def made(version: str, *blocks: str, ranks: int = 8, status: str = "RUNNING", errors: str = "MISMATCH") -> Communicator:
    """What is read from a recorded answer whose one communicator is given other blocks."""
    head, row, rest = ras_answer(f"{version}_hung.txt").partition(
        "    0         1         1         2         2         2   RUNNING  MISMATCH"
    )
    assert row
    table = f"    0         1         1         {ranks}         {ranks}         {ranks}   {status}  {errors}"
    text = "".join(f"{block}\n\n" for block in blocks)
    (one,) = parse(f"{head}{table}{rest.partition('#')[0]}{text}")
    return one


def counts(one: Communicator, kind: str = "AllReduce") -> dict[int, int]:
    """By rank, how many of a kind it has called."""
    return {member.rank: member.launched[kind] for member in one.members if kind in member.launched}


@VERSIONS
def test_the_text_says_which_rank_is_behind_and_whose_it_is(version: str) -> None:
    """Rank 1 had stopped calling."""
    (one,) = recorded(f"{version}_hung.txt")
    ahead, behind = one.members

    assert (one.size, one.missing, one.timeouts, one.nccl_version, one.source) == (2, 0, 0, version, "text")
    assert [(m.rank, m.gpu, m.host, m.state) for m in one.members] == [
        (0, 0, "192.0.2.2", "running"),
        (1, 1, "192.0.2.2", "running"),
    ]
    assert behind.pid == (ahead.pid or 0) + 1
    assert list(ahead.launched) == list(behind.launched) == [COUNTERS[version]]
    assert ahead.launched[COUNTERS[version]] > behind.launched[COUNTERS[version]]


@VERSIONS
def test_the_text_names_a_rank_that_was_killed_and_its_process(version: str) -> None:
    """12 to 20 s after a SIGKILL. NCCL before 2.26 gives the rank in one place and the process in another."""
    (one,) = recorded(f"{version}_one_dead.txt")
    (dead,) = one.members

    assert (one.size, one.missing) == (2, 1)
    assert (dead.rank, dead.state, dead.host, dead.gpu, dead.launched) == (1, "unresponsive", "192.0.2.2", 1, {})
    assert f"  Process {dead.pid} on node" in ras_answer(f"{version}_one_dead.txt")


@pytest.mark.parametrize("version", [one for one in COUNTERS if one != "2.28.9"])
def test_the_text_of_a_healthy_job_names_ranks_only_while_they_differ(version: str) -> None:
    """By one call; a moment later they are level, and the answer says no more than how many they are."""
    for look in (1, 2):
        (one,) = recorded(f"{version}_healthy_{look}.txt")
        reached = counts(one, COUNTERS[version])

        assert (one.size, one.missing) == (2, 0)
        assert not one.members or abs(reached[0] - reached[1]) == 1
        assert (one.communicator == "group-0") == (not one.members)


@WITH_JSON
def test_the_json_names_every_rank_and_count(version: str) -> None:
    """Also of ranks that are level."""
    for look in ("hung", "healthy_1", "healthy_2"):
        (one,) = recorded(f"{version}_{look}.json")

        assert (one.size, one.missing, one.nccl_version, one.source) == (2, 0, version, "json")
        assert [(m.rank, m.gpu, m.host) for m in one.members] == [(0, 0, "192.0.2.2"), (1, 1, "192.0.2.2")]
        assert all(m.launched["AllReduce"] > 40 for m in one.members)


@WITH_JSON
@pytest.mark.parametrize("look", ["hung", "one_dead"])
def test_the_text_of_the_same_moment_says_the_same_as_the_json(version: str, look: str) -> None:
    """As far as it goes: it is silent about ranks that are level."""
    (json,), (text,) = recorded(f"{version}_{look}.json"), recorded(f"{version}_{look}.txt")

    def told(member: GroupMember) -> tuple[int, int | None, str, str, int | None]:
        return member.rank, member.pid, member.host, member.state, member.launched.get("AllReduce")

    assert (text.communicator, text.size, text.missing) == (json.communicator, json.size, json.missing)
    assert {told(m) for m in text.members} <= {told(m) for m in json.members}
    assert 1 in {m.rank for m in text.members}


@pytest.mark.parametrize("form", ["json", "txt"])
def test_two_groups_that_are_called_in_opposite_order_are_kept_apart(form: str) -> None:
    """Recorded while each of two ranks waited for the other: in one group rank 0 is ahead, in the other rank 1."""
    found = [counts(one) for one in recorded(f"2.28.9_opposite_order.{form}")]

    assert len(found) == 3
    assert {0: 21, 1: 20} in found
    assert {0: 20, 1: 21} in found


def test_a_line_of_json_that_an_older_version_refuses_is_no_report() -> None:
    """NCCL before 2.28.7."""
    with pytest.raises(Unavailable, match="Unknown command"):
        parse("ERROR: Unknown command SET FORMAT json\n")


def rank(number: int, told: str = "") -> str:
    """A line about one rank."""
    return f"  Rank {number}{told} -- GPU {number} managed by process {100 + number} on node 192.0.2.2"


@pytest.mark.parametrize(("version", "kind"), [("2.24.3", "collective"), ("2.30.7", "AllReduce")])
def test_of_many_ranks_those_that_are_not_named_have_the_count_of_the_most(version: str, kind: str) -> None:
    """Six of eight are told together; without them the two that are behind would only be compared with each other."""
    one = made(
        version,
        f"#0-0 (a1) MISMATCH\n  Communicator ranks have different {kind} operation counts\n"
        f"  6 ranks have launched up to operation 120\n{rank(2, ' has launched up to operation 117')}\n"
        + rank(5, " has launched up to operation 119"),
    )

    assert counts(one, kind) == {0: 120, 1: 120, 2: 117, 3: 120, 4: 120, 5: 119, 6: 120, 7: 120}
    assert {m.rank: m.pid for m in one.members if m.pid} == {2: 102, 5: 105}


def test_ranks_of_one_count_that_are_fewer_than_half_are_listed_below_it() -> None:
    """And may not have called at all."""
    one = made(
        "2.30.7",
        "#0-0 (a1) MISMATCH\n  Communicator ranks have different Broadcast operation counts\n"
        f"  6 ranks have launched up to operation 3\n  2 ranks have not launched any operations\n{rank(1)}\n{rank(6)}",
    )

    assert counts(one, "Broadcast") == {0: 3, 1: 0, 2: 3, 3: 3, 4: 3, 5: 3, 6: 0, 7: 3}


def test_an_even_split_names_nobody_and_nobody_is_guessed() -> None:
    """Two and two: which of them are behind is not said. One that is named is not compared with those that are not."""
    head = "#0-0 (a1) MISMATCH\n  Communicator ranks have different AllReduce operation counts\n"
    halves = "  2 ranks have launched up to operation 9\n  2 ranks have launched up to operation 8"
    split = made("2.30.7", head + halves, ranks=4)
    third = made("2.30.7", f"{head}{halves}\n{rank(4, ' has launched up to operation 7')}", ranks=5)

    assert split.members == ()
    assert [(m.rank, m.launched) for m in third.members] == [(4, {})]


def test_each_kind_of_collective_has_a_part_of_its_own() -> None:
    """Under one heading, with blank lines between; NCCL 2.26 and newer."""
    one = made(
        "2.30.7",
        f"#0-0 (a1) MISMATCH\n  Communicator ranks have different status\n{rank(0, ' has status RUNNING')}\n"
        + rank(1, " has status FINALIZE"),
        f"  Communicator ranks have different Broadcast operation counts\n{rank(1, ' has launched up to operation 4')}\n"
        + rank(0, " has not launched any operations"),
        f"  Communicator ranks have different AllReduce operation counts\n{rank(0, ' has launched up to operation 42')}\n"
        + rank(1, " has launched up to operation 41"),
        ranks=2,
    )

    assert [(m.rank, m.state, m.launched) for m in one.members] == [
        (0, "running", {"Broadcast": 0, "AllReduce": 42}),
        (1, "finalizing", {"Broadcast": 4, "AllReduce": 41}),
    ]


@pytest.mark.parametrize(
    ("version", "lines", "pids"),
    [
        ("2.24.3", "  6 ranks have status RUNNING\n  2 ranks have status UNKNOWN\n  The unknown ranks: 3,7", [None, None]),
        ("2.24.3", "  7 ranks have status RUNNING\n  Rank 3 has status UNKNOWN", [None]),
        ("2.30.7", f"  6 ranks have status RUNNING\n  2 ranks have status NOCOMM\n{rank(3)}\n{rank(7)}", [103, 107]),
        ("2.30.7", f"  7 ranks have status RUNNING\n{rank(3, ' has status NOCOMM')}", [103]),
        ("2.30.7", "  7 ranks have status RUNNING\n  Rank 3 has status NOCOMM -- [process information not found]", [None]),
    ],
)  # fmt: skip
def test_a_rank_whose_process_does_not_know_the_communicator_is_missing(
    version: str, lines: str, pids: list[int | None]
) -> None:
    """It answers, and has left the group or never joined it."""
    one = made(version, f"#0-0 (a1) MISMATCH\n  Communicator ranks have different status\n{lines}")
    lost = [member for member in one.members if member.state == "missing"]

    assert [member.rank for member in lost] == [3, 7][: len(pids)]
    assert [member.pid for member in lost] == pids
    assert one.missing == len(pids)


def test_ranks_that_are_missing_are_not_counted_among_those_that_are_level() -> None:
    """One process is unreachable, one is given up, and of the others one is behind."""
    one = made(
        "2.30.7",
        "INCOMPLETE\n  Missing communicator data from 1 job process\n  Process 103 on node 192.0.2.2 managing GPU 3",
        "DEAD\n  1 job process is considered dead (unreachable via the RAS network)\n"
        "  Process 107 on node 192.0.2.2 managing GPUs 6,7 (NVML 4,5)",
        f"#0-0 (a1) INCOMPLETE\n  Missing communicator data from 2 ranks\n{rank(3)}\n{rank(7)}",
        "TIMEOUT\n  Encountered 2 communication timeouts while gathering communicator data",
        "#0-0 (a1) MISMATCH\n  Communicator ranks have different AllReduce operation counts\n"
        f"  5 ranks have launched up to operation 9\n{rank(0, ' has launched up to operation 8')}",
        errors="INCOMPLETE,MISMATCH",
    )

    assert (one.missing, one.timeouts) == (2, 2)
    assert counts(one) == {0: 8, 1: 9, 2: 9, 4: 9, 5: 9, 6: 9}
    assert {m.rank: m.state for m in one.members if m.state != "running"} == {3: "unresponsive", 7: "dead"}


def test_a_list_of_missing_ranks_that_was_cut_names_nobody() -> None:
    """NCCL 2.24 writes it into a line of limited length: the last number may be half of one."""
    cut = made("2.24.3", "#0-0 (a1) INCOMPLETE\n  Missing communicator data from 3 ranks\n  The missing ranks: 10,11,1",
               ranks=16, errors="INCOMPLETE")  # fmt: skip
    short = made("2.24.3", "#0-0 (a1) INCOMPLETE\n  Missing communicator data from 4 ranks\n  The missing ranks: 10,11,1",
                 ranks=16, errors="INCOMPLETE")  # fmt: skip

    assert [member.rank for member in cut.members] == [1, 10, 11]
    assert (short.members, short.missing) == ((), 4)


def test_an_error_of_a_rank_is_known_by_its_number() -> None:
    """As ncclResult_t counts them."""
    one = made(
        "2.30.7",
        f"#0-0 (a1) ERROR\n  Asynchronous errors on 3 ranks\n  2 ranks reported Remote process error\n{rank(0)}\n{rank(2)}\n"
        + rank(1, " reported Unhandled CUDA error"),
        errors="ERROR",
    )

    assert {member.rank: member.error for member in one.members} == {0: 6, 1: 1, 2: 6}


def test_a_job_that_has_no_communicator_yet_is_no_trouble() -> None:
    """NCCL 2.24 prints an empty table, later ones a line in its place."""
    recorded_text = ras_answer("2.30.7_healthy_1.txt")
    head, table = recorded_text.split("Group  ")
    text = f"{head}No communicator data collected!\n\nErrors{table.partition('Errors')[2].partition('Errors')[2]}"

    assert parse(text) == []


@pytest.mark.parametrize(
    "text", ["", "hello", "{", '{"communicators": [{"hash": 3}]}', '{"communicators": 7}', "[" * 99]
)
def test_anything_else_is_refused_and_never_guessed_from(text: str) -> None:
    """Torn, foreign or hostile."""
    with pytest.raises(Unavailable):
        parse(text)


@pytest.mark.parametrize("number", ["1e400", "-1e400", "9" * 25, "9" * 5000, "NaN", "null"])
@pytest.mark.parametrize("place", ['"size": {}', '"size": 2, "ranks": [{{"rank": 0, "pid": {}}}]'])
def test_a_number_that_none_can_be_is_refused(number: str, place: str) -> None:
    """Infinite, of more than 64 bits, or of more digits than Python reads."""
    with pytest.raises(Unavailable):
        parse('{"communicators": [{"hash": "0x1", "ranks": [], ' + place.format(number) + "}]}")


def test_half_a_character_is_none() -> None:
    """A recording cannot hold it."""
    member = '{"rank": 0, "pid": 7, "host": "\\ud800", "collective_counts": {"\\ud800": 1}}'
    (one,) = parse('{"communicators": [{"hash": "0x1", "size": 1, "ranks": [' + member + "]}]}")

    assert (one.members[0].host, one.members[0].launched) == ("?", {"?": 1})


def test_a_text_with_thousands_of_digits_is_refused() -> None:
    """Python does not read them."""
    whole = ras_answer("2.28.9_hung.txt")
    with pytest.raises(Unavailable):
        parse(whole.replace("managed by process 607", f"managed by process {'6' * 5000}"))


def test_every_torn_json_is_refused() -> None:
    """A rank that dies while it answers leaves half of a report."""
    whole = ras_answer("2.28.9_hung.json")
    for length in range(1, len(whole.rstrip()) - 1, 97):
        with pytest.raises(Unavailable):
            parse(whole[:length])


@VERSIONS
def test_a_torn_text_is_refused_or_says_nothing_of_counts(version: str) -> None:
    """Never the count of one rank without that of the others."""
    whole = ras_answer(f"{version}_hung.txt")
    for length in range(len(whole) - 1):
        try:
            found = parse(whole[:length])
        except Unavailable:
            continue
        assert [member.launched for one in found for member in one.members if member.launched] == []
