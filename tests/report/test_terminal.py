"""The one-screen report: exact text, 80 columns and fewer, no colour where nobody asked for it."""

import io
import json
from importlib.resources import files

import jsonschema
import pytest
from rich.console import Console

from perfwatch.gauntlet.recorded import expected_of
from perfwatch.report.console import list_table
from perfwatch.report.json import as_json, json_schema
from perfwatch.report.sentences import not_seen
from perfwatch.report.terminal import VerdictReport
from perfwatch.report.verdicts import possible_here
from perfwatch.text import clean, duration
from perfwatch.triage.diagnose import diagnose
from perfwatch.verdict import (
    IT_RUNS,
    SLEEP,
    SLEEP_LEFT,
    Alternative,
    Culprit,
    Evidence,
    Link,
    Missing,
    Place,
    Suspect,
    Verdict,
)
from tests.recorded import RECORDINGS, load_case
from tests.sessions import verdict

PLACE = Place(function="__getitem__", file="/data/proj/train.py", line=9, source="time.sleep(1e6)")
FULL = verdict(
    silent_seconds=412.0,
    last_step=8998,
    cause="stalled_collective",
    summary="rank 1 never joined all_reduce #8998: its workers 758 and 760 have slept at train.py:9 for 412 s",
    culprits=(
        Culprit(rank=1, pid=734, worker_pid=758, thread="MainThread", frame="__getitem__ (train.py:9)", place=PLACE),
        Culprit(rank=1, pid=734, worker_pid=759, thread="MainThread", frame="__getitem__ (train.py:9)", place=PLACE),
        Culprit(rank=1, pid=734, worker_pid=760, thread="loader", gpu=1, host="node-a"),
        Culprit(rank=1, pid=734, worker_pid=761, tid=761, thread="bash"),
    ),
    wait_chain=(
        Link(pid=733, rank=0, waits_for="all_reduce with rank 1", frame="step (train.py:40)", silent_seconds=412.0),
        Link(pid=735, rank=2, waits_for="all_reduce with rank 1", frame="step (train.py:40)", silent_seconds=411.0),
        Link(pid=734, rank=1, waits_for="a batch from worker 758", depth=1),
        Link(pid=758, waits_for=f"{SLEEP}{SLEEP_LEFT}11 d 13 h", depth=2, silent_seconds=412.0),
        Link(pid=760, waits_for=IT_RUNS, depth=2, silent_seconds=6.9),
    ),
    evidence=(
        Evidence(witness="stack", entity="pid 758", claim="the same frame", observed="6 of 6 dumps", expected="moves"),
    ),
    alternatives=(Alternative(cause="straggling_rank", refuted_by="counts unchanged"),),
    missing=(Missing(witness="steps", reason="no agent", advice="perfwatch run -- COMMAND"),),
    next=("perfwatch explain stalled_collective",),
)

EXPECTED = """\
HUNG  stalled_collective  (confidence: certain)  for 6 min 52 s  (usually fixed
in: user code)
rank 1 never joined all_reduce #8998: its workers 758 and 760 have slept at
train.py:9 for 412 s
culprit      rank 1 (workers 758, 759 of pid 734)
             /data/proj/train.py:9  in __getitem__
                 time.sleep(1e6)
             rank 1 (worker 760 of pid 734), gpu 1, on node-a, thread loader
             rank 1 (process 761 (bash) of pid 734)
blocked on   ranks 0,2 (pids 733, 735)  train.py:40 step  wait for all_reduce
             with rank 1
             └▸ rank 1 (pid 734)  waits for a batch from worker 758
                └▸ pid 758  sleeps for another 11 d 13 h, for 6 min 52 s so far
                └▸ pid 760  runs
evidence     stack  pid 758: the same frame: 6 of 6 dumps
ruled out    straggling_rank: counts unchanged
not observed steps: no agent -> perfwatch run -- COMMAND
next         perfwatch explain stalled_collective
2026-11-20T11:51:24Z, 2 of 2 ranks seen, step 8,998; perfwatch used 210 ms of
CPU, 6 py-spy calls, never paused the job
"""


def rendered(one: Verdict, width: int = 80, **options: object) -> str:
    """What a stream of that width gets, without the blanks at the ends of lines."""
    stream = io.StringIO()
    settings: dict[str, object] = {"width": width, "_environ": {}, **options}
    Console(file=stream, **settings).print(VerdictReport(one))  # type: ignore[arg-type]
    return "".join(line.rstrip() + "\n" for line in stream.getvalue().splitlines())


def test_a_full_verdict_fits_one_screen() -> None:
    """What, who, why, how sure, what else, what next, at what cost: 22 lines of 80 columns."""
    assert rendered(FULL) == EXPECTED


def test_an_empty_part_is_left_out() -> None:
    """A healthy verdict has four lines, not a form with empty fields."""
    healthy = verdict(state="healthy", cause="cpu_training", summary="steps advance", owner="unknown")

    assert rendered(healthy).splitlines() == [
        "HEALTHY  cpu_training  (confidence: certain)",
        "steps advance",
        "2026-11-20T11:51:24Z, 2 of 2 ranks seen; perfwatch used 210 ms of CPU, 6 py-spy",
        "calls, never paused the job",
    ]


def test_a_suspicion_counts_down() -> None:
    """Whoever waits sees for what and how long."""
    suspect = Suspect(state="hung", cause="blocked_network", silent_seconds=20.0, decides_in_seconds=40.0)
    text = rendered(verdict(state="inconclusive", cause=None, suspect=suspect))

    assert "hung (blocked_network) if nothing moves for another 40 s; silent for 20 s so far" in text


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    """Phones at three in the morning included."""
    assert max(len(line) for line in rendered(FULL, width).splitlines()) <= width


def test_colour_is_for_terminals_that_want_it() -> None:
    """Not for files and pipes, and not with NO_COLOR."""
    assert "\x1b" not in rendered(FULL)
    assert "\x1b[1;31mHUNG" in rendered(FULL, force_terminal=True, color_system="standard")
    assert "\x1b[1;31m" not in rendered(FULL, force_terminal=True, _environ={"NO_COLOR": "1"})


def test_names_from_the_job_are_shown_and_not_obeyed() -> None:
    """File and thread names may hold markup of rich or escapes of the terminal."""
    hostile = "[bold]x[/bold] \x1b[2J\nsecond"
    text = rendered(
        verdict(
            summary=hostile,
            culprits=(Culprit(pid=1, frame=hostile, thread=hostile),),
            wait_chain=(Link(pid=1, waits_for=hostile, frame=hostile),),
            evidence=(Evidence(witness=hostile, entity=hostile, claim=hostile, observed=hostile),),
            missing=(Missing(witness=hostile, reason=hostile, advice=hostile),),
            next=(hostile,),
        ),
        width=400,
    )

    assert text.count("[bold]x[/bold]") == 13
    assert "\x1b" not in text


def test_long_lists_are_cut_and_counted() -> None:
    """A job of a thousand ranks does not scroll the headline away."""
    many = verdict(
        culprits=tuple(Culprit(pid=pid, frame=f"step (train.py:{pid})") for pid in range(1000)),
        wait_chain=tuple(Link(pid=pid, waits_for="x", depth=pid) for pid in range(1000)),
    )
    text = rendered(many)

    assert "and 996 more in --json" in text
    assert len(text.splitlines()) < 24


def test_what_is_missing_for_many_ranks_is_told_once_and_stacks_come_first() -> None:
    """Seven lines about connections hid that no stack could be read."""
    connections = [Missing(witness="traffic", reason=f"pid {pid}: permission denied") for pid in range(101, 108)]
    stacks = Missing(witness="stacks", reason="pid 101: permission denied", advice="sudo perfwatch attach 101")

    assert not_seen((*connections, stacks)) == [
        "stacks: pid 101: permission denied -> sudo perfwatch attach 101",
        "traffic: pid 101: permission denied (and 6 more like it)",
    ]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("train.py:9", "train.py:9"),
        ("modèle_学習.py", "modèle_学習.py"),
        ("\x1b[31mred\x1b]0;title\x07", "?[31mred?]0;title?"),
        ("two\nlines\tand\r", "two lines and "),
        ("safe\u202egnp.exe", "safe?gnp.exe"),
        ("\udcff broken utf-8", "? broken utf-8"),
        ("\x9b31m", "?31m"),
    ],
)
def test_control_characters_do_not_reach_the_terminal(text: str, shown: str) -> None:
    """Escape sequences, line ends, bidirectional overrides, bytes that are no text."""
    assert clean(text) == shown


@pytest.mark.parametrize(
    "text", ["\x9b31m", "safe\u202egnp.exe", "\x1b[31m\x7f", "modèle_学習.py \U0001f600", "\U000e0041"]
)
def test_json_on_a_terminal_steers_nothing_and_says_the_same(text: str) -> None:
    """JSON's own rules escape ASCII alone: what else could steer a terminal is escaped, too."""
    said = as_json(verdict(summary=text))

    assert json.loads(said)["summary"] == text
    assert clean(said) == said


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0, "0 s"), (0.000412, "412 us"), (0.0044, "4.4 ms"), (0.44, "440 ms"), (0.9996, "1.0 s"), (9.96, "10.0 s"),
        (42.4, "42 s"), (99.4, "99 s"), (412.0, "6 min 52 s"), (3599.6, "1 h 00 min"), (11_100, "3 h 05 min"),
        (187_200, "2 d 4 h"), (999_993, "11 d 13 h"), (None, "unknown"),
    ],
)  # fmt: skip
def test_a_duration_reads_as_people_say_it(seconds: float | None, shown: str) -> None:
    """Two units at most, none of them too fine."""
    assert duration(seconds) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.000412, "412 us"),
        (0.0382, "38.2 ms"),
        (0.9996, "1.00 s"),
        (1.5, "1.50 s"),
        (99.97, "1 min 40 s"),
        (3600.0, "1 h 00 min"),
    ],
)
def test_a_step_time_has_three_figures(seconds: float, shown: str) -> None:
    """Two steps that differ by a few percent look different."""
    assert duration(seconds, 3) == shown


CASES = (
    "stuck_worker/fires/lock_taken_again_beside_others",
    "stalled_collective/fires/stalled_collective-loader-quiet",
    "gpu_bound/fires/gpu_bound",
    "crashed/fires/crashed",
    "starved_by_transforms/fires/starved_by_transforms",
    "autotuning/fires/autotuning-third",
)


@pytest.mark.parametrize("case", CASES)
def test_the_json_of_a_verdict_is_as_its_schema_says(case: str) -> None:
    """Each state, with culprits, chains, figures of cards and what other rules found."""
    judged = diagnose(load_case(RECORDINGS / case), expected_of(RECORDINGS / case).at)

    jsonschema.validate(json.loads(as_json(judged)), json.loads(json_schema()))


def test_the_package_has_the_schema_of_the_verdict() -> None:
    """Programs are written against a file; make it anew with ``json_schema()`` where the verdict got a field."""
    shipped = files("perfwatch.report") / "schema" / "perfwatch.verdict-2.json"

    assert shipped.read_text(encoding="utf-8") == json_schema()


def test_the_json_tells_a_place_in_fields_and_in_words_of_the_screen() -> None:
    """No program needs a regular expression to open the file."""
    told = json.loads(as_json(FULL))

    assert told["schema"] == "perfwatch.verdict/2"
    assert told["culprits"][0]["frame"] == {
        "function": "__getitem__", "file": "/data/proj/train.py", "line": 9, "source": "time.sleep(1e6)",
    }  # fmt: skip
    assert told["wait_chain"][0]["frame"] == {"function": "step", "file": "train.py", "line": 40, "source": None}
    assert told["confidence"] == "certain"
    assert told["evidence"][0]["source"] == "stack"
    assert [one["cause"] for one in told["ruled_out"]] == ["straggling_rank"]
    assert [one["source"] for one in told["not_observed"]] == ["steps"]


def test_the_first_form_of_the_json_is_printed_as_it_was() -> None:
    """Scripts of perfwatch 0.1 ask for it: text frames, a number as confidence, and no field that came later."""
    told = json.loads(as_json(FULL, 1))

    assert told["schema"] == "perfwatch.verdict/1"
    assert told["culprits"][0]["frame"] == "__getitem__ (train.py:9)"
    assert "place" not in told["culprits"][0]
    assert told["confidence"] == 0.97
    assert told["alternatives"][0]["refuted_by"] == "counts unchanged"


def test_a_step_that_needs_a_program_which_is_not_here_comes_last_and_says_so() -> None:
    """At 3 a.m. the first command has to work."""
    steps = ("iostat -x 1", "dmesg | grep -i xid; ss -tni", "perfwatch capture stacks 7")
    found = possible_here(verdict(next=steps), which=lambda name: None if name == "iostat" else f"/usr/bin/{name}")

    assert found.next == (*steps[1:], "iostat -x 1 (not installed here: iostat)")


def test_a_list_in_a_narrow_terminal_leaves_out_columns_and_cuts_none_but_the_last() -> None:
    """A name is there to be copied."""
    row = ("20261201-053353-13373", "88 KiB", "hung", "python train.py --lr 1e-3")
    table = list_table(("SESSION", "SIZE", "STATE", "COMMAND"), [row], ("SIZE",), 60)
    printed = io.StringIO()
    Console(file=printed, width=60).print(table)

    assert printed.getvalue().split() == ["SESSION", "STATE", "COMMAND", row[0], row[2], *row[3].split()]
