"""All hosts are asked, whatever each answers is told, and there is one job or a question which."""

import io
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import pytest

from perfwatch.errors import NoSuchTarget, UsageError
from perfwatch.fleet import wire
from perfwatch.fleet.asking import Question, ask, skew_seconds
from perfwatch.fleet.engine import Answer, Heard
from perfwatch.fleet.merge.snapshot import JobView, Snapshot
from perfwatch.fleet.report import host_lines
from perfwatch.fleet.staying import until_clear
from tests.fleet.parts import simulated

NOW = 1_800_000_000.0


@dataclass
class Spoken:
    """An engine whose hosts say what the test wants them to say: lines for a snapshot, or a ready answer."""

    says: dict[str, Snapshot | Answer]
    complete: bool = False
    job: str = ""
    asked: list[list[str]] = field(default_factory=list)

    @property
    def hosts(self) -> tuple[str, ...]:
        """All that say something."""
        return tuple(self.says)

    def by_hand(self, host: str) -> str:
        """As ssh has it."""
        return f"ssh {host}"

    def ask(self, arguments: Sequence[str], deadline_seconds: float, heard: Heard) -> None:
        """Answer at once."""
        self.asked.append(list(arguments))
        nonce = next(word.partition("=")[2] for word in arguments if word.startswith("--nonce="))
        for host, said in self.says.items():
            if isinstance(said, Snapshot):
                heard(Answer(host, tuple(wire.lines(said, nonce)), received=NOW))
            else:
                heard(said)


def snapshot(host: str, *views: JobView, place: str = "", **more: object) -> Snapshot:
    """What a host says of its jobs."""
    facts: dict[str, object] = {
        "version": "1",
        "host": host,
        "place": place or host,
        "made": NOW,
        "jobs": views,
        **more,
    }
    return Snapshot(**facts)  # type: ignore[arg-type]


def other(view: JobView) -> JobView:
    """The same, as another job."""
    return msgspec.structs.replace(
        view, identity=msgspec.structs.replace(view.identity, run="run-8", master="node-9:29501")
    )


def test_each_host_is_asked_for_the_same_and_answers_become_one_verdict() -> None:
    """Two hosts with eight ranks each; who asks says for how long to look, and marks its question."""
    first, second = simulated(2, stuck_rank=9)
    engine = Spoken({"a": snapshot("a", first.view), "b": snapshot("b", second.view)})
    outcome = ask(engine, Question(seconds=4.0, patience_seconds=30.0))

    assert [word.partition("=")[0] for word in engine.asked[0]] == ["snapshot", "--seconds", "--patience", "--nonce"]
    assert (outcome.verdict.cause, outcome.verdict.culprits[0].host) == ("stalled_collective", "b")
    assert host_lines(outcome.reports) == ["a, b: answered, with rank 0-15"]


def test_progress_counts_hosts() -> None:
    """For the bar."""
    first, second = simulated(2)
    told: list[tuple[int, int]] = []
    ask(
        Spoken({"a": snapshot("a", first.view), "b": snapshot("b", second.view)}),
        Question(),
        lambda done, total: told.append((done, total)),
    )

    assert told == [(0, 2), (1, 2), (2, 2)]


def test_one_machine_under_two_names_is_counted_once() -> None:
    """An alias, or two pods that see each other's processes."""
    first, second = simulated(2)
    engine = Spoken(
        {
            "a": snapshot("a", first.view, place="boot-1"),
            "alias": snapshot("a", first.view, place="boot-1"),
            "b": snapshot("b", second.view),
        }
    )
    outcome = ask(engine, Question())

    assert [one.state for one in outcome.reports] == ["answered", "double", "answered"]
    assert outcome.verdict.coverage.ranks_seen == 16


def test_of_several_jobs_the_user_has_to_choose() -> None:
    """The error says what each says of itself, and on which hosts."""
    first, second = simulated(2)
    engine = Spoken({"a": snapshot("a", first.view, other(first.view)), "b": snapshot("b", second.view)})

    with pytest.raises(UsageError, match=r"2 jobs .*run run-7.*\(on a, b\).*run run-8.*\(on a\)") as failed:
        ask(engine, Question())
    assert "--job" in failed.value.advice


def test_a_host_that_has_a_whole_world_has_a_job_of_its_own() -> None:
    """Two trainings on one node each, both on torch's usual port, are not one job."""
    (first,), (second,) = simulated(1), simulated(1)
    engine = Spoken({"a": snapshot("a", first.view), "b": snapshot("b", second.view)})

    with pytest.raises(UsageError, match="2 jobs"):
        ask(engine, Question())


def test_a_master_that_calls_itself_localhost_does_not_part_a_job() -> None:
    """The first host often does."""
    first, second = simulated(2, stuck_rank=9)
    local = msgspec.structs.replace(
        first.view, identity=msgspec.structs.replace(first.view.identity, master="localhost:29500")
    )
    outcome = ask(Spoken({"a": snapshot("a", local), "b": snapshot("b", second.view)}), Question())

    assert outcome.verdict.coverage.ranks_seen == 16


def test_without_any_job_each_host_says_why() -> None:
    """No such target, with what to install where."""
    engine = Spoken(
        {
            "a": snapshot("a"),
            "b": Answer("b", said="sh: 1: exec: perfwatch: not found", exit_code=127),
            "c": Answer("c", timed_out=True),
        }
    )

    with pytest.raises(NoSuchTarget) as failed:
        ask(engine, Question())
    assert "no training job on a" in failed.value.message
    assert "b: perfwatch could not be started there" in failed.value.message
    assert "c: no answer within" in failed.value.message
    assert "--command" in failed.value.advice


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ("ssh: connect to host c port 22: No route to host", "silent"),
        ("Connection timed out during banner exchange", "silent"),
        ("kex_exchange_identification: Connection closed by remote host", "silent"),
        ("root@c: Permission denied (publickey).", "failed"),
        ("ssh: Could not resolve hostname c: Name or service not known", "failed"),
        ('OCI runtime exec failed: exec: "perfwatch": executable file not found in $PATH', "failed"),
    ],
)
def test_a_host_that_is_down_is_told_from_one_that_does_not_let_us_in(said: str, state: str) -> None:
    """Only the first says anything of the job."""
    first, _ = simulated(2)
    outcome = ask(Spoken({"a": snapshot("a", first.view), "c": Answer("c", said=said, exit_code=255)}), Question())

    assert outcome.reports[1].state == state
    assert outcome.reports[1].reason.endswith(said)
    assert (outcome.verdict.state == "hung") is (state == "silent")


def test_a_host_that_hangs_after_its_banner_is_late() -> None:
    """What sshd says to everybody is no reason."""
    first, _ = simulated(2)
    engine = Spoken({"a": snapshot("a", first.view), "b": Answer("b", said="Authorized use only.", timed_out=True)})
    outcome = ask(engine, Question())

    assert outcome.reports[1].state == "silent"
    assert outcome.reports[1].reason == "no answer within 31 s; the last that came: Authorized use only."


@pytest.mark.parametrize(("nearly_all", "confidence"), [(None, 0.8), (9.0, 0.65)])
def test_a_host_that_was_given_up_before_the_deadline_may_only_be_slow(
    nearly_all: float | None, confidence: float
) -> None:
    """Nearly all others had answered, so a dead one is not waited for; a hang is blamed on it with less confidence then."""
    first, _ = simulated(2)
    late = Answer("b", timed_out=True, waited=11.0, nearly_all=nearly_all)
    outcome = ask(Spoken({"a": snapshot("a", first.view), "b": late}), Question())

    assert (outcome.verdict.state, outcome.verdict.confidence) == ("hung", confidence)


@pytest.mark.parametrize(("hidden", "unwanted", "job"), [(3, 0, ""), (0, 1, "run-7")])
def test_what_may_not_be_looked_into_or_was_passed_over_is_not_gone(hidden: int, unwanted: int, job: str) -> None:
    """Ranks of another user, and a job that does not fit what was asked for: neither is evidence that ranks have ended."""
    first, _ = simulated(2)
    engine = Spoken({"a": snapshot("a", first.view), "b": snapshot("b", hidden=hidden, unwanted=unwanted)})
    outcome = ask(engine, Question(job=job))

    assert outcome.reports[1].state == "failed"
    assert outcome.verdict.state == "inconclusive"


def test_where_all_hosts_of_a_slurm_job_have_answered_the_absent_ranks_have_ended() -> None:
    """The hosts are told which job of Slurm's is meant, so that those of another one are passed over there."""
    first, _ = simulated(2)
    engine = Spoken({"a": snapshot("a", first.view), "b": snapshot("b")}, complete=True, job="slurm job 7 step ")
    outcome = ask(engine, Question())

    assert engine.asked[0][-1] == "--scheduler=slurm job 7 step "
    assert (outcome.reports[1].state, outcome.verdict.state) == ("no_job", "hung")


def test_ranks_that_their_host_could_not_read_have_not_ended() -> None:
    """All hosts of the job have answered, one of them with a part of its ranks."""
    first, _ = simulated(2)
    hiding = msgspec.structs.replace(first.view, hidden=8)
    outcome = ask(Spoken({"a": snapshot("a", hiding)}, complete=True), Question())

    assert outcome.reports[0].hidden == 8
    assert outcome.verdict.state == "inconclusive"


def test_a_clock_is_called_wrong_only_where_it_must_be() -> None:
    """An answer was made between the end of the look and its arrival."""
    assert skew_seconds(made=105.0, earliest=100.0, latest=110.0) == 0.0
    assert skew_seconds(made=400.0, earliest=100.0, latest=110.0) == 290.0
    assert skew_seconds(made=40.0, earliest=100.0, latest=110.0) == -60.0


def test_a_suspicion_that_time_decides_is_waited_for() -> None:
    """As long as it says, and no longer than the patience; then all are asked again."""
    first, second = simulated(2)

    def young(view: JobView) -> JobView:
        """Whoever waits has done so for a moment."""
        kept = tuple(
            msgspec.structs.replace(one, reading=msgspec.structs.replace(one.reading, ran_ago_seconds=one.at + 0.5))
            if hasattr(one.reading, "ran_ago_seconds")
            else one
            for one in view.records
        )
        return msgspec.structs.replace(view, records=kept)

    silent = Answer("b", timed_out=True)
    del second
    engine = Spoken({"a": snapshot("a", young(first.view)), "b": silent})
    waits: list[float] = []
    stream = io.StringIO()
    outcome = until_clear(engine, Question(seconds=1.0, patience_seconds=20.0), stream, wait=waits.append)

    assert outcome.verdict.state == "inconclusive"
    assert outcome.verdict.suspect is not None
    assert len(engine.asked) == len(waits) + 1 >= 2
    assert sum(waits) <= 21.0
    assert "decides in" in stream.getvalue()
