"""What makes a calm job suspect: its cards and their driver speak before the steps are late."""

import os
import subprocess
import sys
import time

import msgspec
import pytest

from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import judge
from perfwatch.triage.history import History
from perfwatch.triage.questions import late_seconds
from perfwatch.watching.attention import Interest, Schedule, alarm, feeding
from perfwatch.watching.cadence import calm_sample
from perfwatch.watching.news import News, Teller
from perfwatch.watching.watch import Watch
from perfwatch_probes.readings import Descriptor, Frame, GpuEvent, GpuSilence, ProcessUsage, Reading, Stack, Thread
from tests.cards import UUID, h200
from tests.recorded import RECORDINGS, load_case
from tests.sessions import PATIENCE_SECONDS, session
from tests.training import BACKWARD, FORWARD, OPTIMIZER, PID, READS_LOSS, Training

STEPS = [FORWARD, BACKWARD, OPTIMIZER]


def calm() -> Training:
    """A training that goes on: its last step was a moment ago."""
    return Training().goes_on(12, STEPS, load="bf16_matmul").steps(120, *[0.1] * 60)


def test_a_training_that_goes_on_raises_no_alarm() -> None:
    """It is left alone."""
    assert alarm(calm().case()) == ""


@pytest.mark.parametrize(
    ("reading", "words"),
    [
        (GpuEvent(uuid=UUID, xid=79), "fallen off the bus"),
        (GpuSilence(call="sample", waited_seconds=4.0), "does not answer"),
    ],
)
def test_what_the_driver_says_or_fails_to_say_is_an_alarm(reading: Reading, words: str) -> None:
    """The job may not have noticed yet."""
    job = calm()
    job.add(reading)

    assert words in alarm(job.case())


@pytest.mark.parametrize(("samples", "raised"), [(6, False), (40, True)])
def test_a_sample_that_has_just_begun_is_no_alarm_where_nothing_counts_steps(samples: int, raised: bool) -> None:
    """Its first stacks need not be of a step; a whole one without any is looked into."""
    job = Training(card=False)
    for number in range(samples // 2):
        lines = (Frame("prepare", "/app/train.py", 30 + number), Frame("train", "/app/train.py", 20))
        job.add(Stack(pid=PID, tid=PID, frames=lines, samples=2, span_seconds=0.1))
        job.history.at += 0.1
    case = job.case()

    assert case.progress[PID].kind == "busy"
    assert bool(alarm(case)) is raised


def test_a_corrected_error_is_no_alarm() -> None:
    """A row that was remapped costs nothing now."""
    job = calm()
    job.add(GpuEvent(uuid=UUID, xid=63))

    assert alarm(job.case()) == ""


def test_a_card_that_is_lost_is_an_alarm() -> None:
    """The driver no longer reaches it."""
    job = calm()
    described = h200()
    job.add(type(described)(uuid=UUID, index=0, name=described.name, lost=True))

    assert "gpu 0 is lost" in alarm(job.case())


def test_kernels_that_do_not_end_are_an_alarm_before_the_step_is_late() -> None:
    """Steps of ten seconds are missed after fifty; their card tells after three."""
    job = Training().goes_on(12, STEPS, load="bf16_matmul")
    job.goes_on(4, [READS_LOSS], load="one_spinning_kernel").steps(12, *[10.0] * 12, ago=4.0)

    assert "has not ended" in alarm(job.case())


FETCHES = RECORDINGS / "starved_by_transforms/fires/starved_by_transforms"


def test_a_rank_that_waits_for_data_nobody_knows_about_asks_for_a_look_at_its_workers() -> None:
    """A run that is slow from its first step: of a calm job only the ranks are sampled, and that names no cause."""
    recording = load_case(FETCHES)
    case = Case(History(recording.records, recording.end), recording.session)
    unexplained = msgspec.structs.replace(judge(case), state="inconclusive", cause=None)

    assert Interest().asks(case, unexplained)


def test_a_rank_that_waits_much_is_looked_at_more_closely_however_well_it_seems() -> None:
    """Between its waits it computes, which alone would be healthy."""
    recording = load_case(FETCHES)
    case = Case(History(recording.records, recording.end), recording.session)

    assert Interest().asks(case, msgspec.structs.replace(judge(case), state="healthy", cause="cpu_training"))


def test_a_run_that_is_well_is_left_alone_until_its_next_sample() -> None:
    """Nothing asks for more, not even where no cause has a name."""
    case = calm().case()
    well = judge(case)

    assert not Interest().asks(case, well)
    assert not Interest().asks(case, msgspec.structs.replace(well, state="inconclusive", cause=None))


def test_a_job_of_which_nothing_is_known_yet_is_sampled_again_before_long() -> None:
    """It was just begun, and imports its modules."""
    assert calm_sample("", 100.0, 4) == calm_sample("healthy", 20.0, 4) < 10.0 < calm_sample("healthy", 100.0, 4)
    assert calm_sample("", 600.0, 4) == calm_sample("healthy", 600.0, 4)


def test_a_calm_job_of_many_processes_is_sampled_less_often_for_the_same_cost() -> None:
    """Once a minute up to sixteen, every four minutes at most; what it showed holds until then."""
    assert calm_sample("healthy", 600.0, 1) == calm_sample("healthy", 600.0, 16) == 60.0
    assert calm_sample("healthy", 600.0, 32) == 120.0
    assert calm_sample("healthy", 600.0, 65) == calm_sample("healthy", 600.0, 512) == 240.0


def test_what_a_sample_of_a_calm_job_showed_holds_until_the_next_one() -> None:
    """Its steps are counted meanwhile; long after it nobody knows any more what the job does."""
    job = Training(card=False).goes_on(12, [FORWARD, BACKWARD, OPTIMIZER]).steps(100, *[0.1] * 60)
    states = []
    for gap in (calm_sample("healthy", 600.0, 512), 600.0):
        for second in range(int(job.history.at), int(gap) + 13):
            job.history.at = float(second)
            job.add(Thread(pid=PID, tid=PID, name="python", state="R", cpu_seconds=second, run_seconds=second))
            job.steps(100 + 10 * (second - 12), *[0.1] * 10)
        states.append(job.verdict().state)

    assert states == ["healthy", "inconclusive"]


@pytest.mark.parametrize(("ago", "longest", "late"), [(70.0, 0.1, 70.0), (50.0, 0.1, 0.0), (70.0, 40.0, 0.0)])
def test_steps_are_late_beyond_the_patience_and_beyond_the_longest_that_was_seen(
    ago: float, longest: float, late: float
) -> None:
    """An evaluation now and then makes one step a long one."""
    job = Training().goes_on(12, STEPS).steps(120, *[0.1] * 60, longest, ago=ago)

    assert late_seconds(job.case()) == late


def test_late_steps_are_told_once_where_nothing_else_is() -> None:
    """Nobody is to read "nothing was suspected" of a job that stands for an hour."""
    case = calm().case()
    nothing = msgspec.structs.replace(
        judge(case), state="inconclusive", cause=None, suspect=None, summary="no cause can be named"
    )
    told: list[News] = []
    teller = Teller(case.session, None, told.append)

    teller.tell(nothing, 10.0)
    for at in (75.0, 80.0):
        teller.tell(nothing, at, late_seconds=70.0)

    assert [(one.kind, one.text) for one in told] == [("suspicion", "no step for 70 s; no cause can be named")]


def test_what_a_close_look_has_answered_is_not_asked_again() -> None:
    """Else a loop that waits a third of its time, and is well, is looked at closely for ever: 70 % of a core beside 2,000 threads."""
    recording = load_case(FETCHES)
    case = Case(History(recording.records, recording.end), recording.session)
    well = msgspec.structs.replace(judge(case), state="healthy", cause="cpu_training")
    interest = Interest()
    assert interest.asks(case, well)

    interest.answered(case)
    assert not interest.asks(case, well)
    little = calm().case()
    assert not interest.asks(little, judge(little))
    assert not interest.asks(case, well), "waits less now and more then: the same loop"


@pytest.mark.parametrize(("mode", "confidence", "told"), [("run", 0.6, 0), ("run", 0.8, 1), ("attach", 0.6, 1)])
def test_an_end_that_nobody_can_explain_is_left_to_the_launcher_of_run(mode: str, confidence: float, told: int) -> None:
    """It knows how the job ended a moment later; who only attached hears nothing better."""
    case = calm().case()
    gone = msgspec.structs.replace(judge(case), state="gone", cause="finished", confidence=confidence)
    news: list[News] = []
    Teller(msgspec.structs.replace(case.session, mode=mode), None, news.append).tell(gone, 10.0)

    assert len(news) == told


@pytest.mark.parametrize(("sooner", "due_at"), [(0.3, 0.3), (5.0, 1.0)])
def test_a_countdown_brings_the_next_look_forward_and_never_puts_it_off(sooner: float, due_at: float) -> None:
    """It is due each second, and once when the countdown ends."""
    now = [0.0]
    schedule = Schedule(lambda: now[0])
    assert schedule.due("judge", 1.0)
    schedule.sooner("judge", sooner)

    now[0] = due_at - 0.01
    assert not schedule.due("judge", 1.0)
    now[0] = due_at
    assert schedule.due("judge", 1.0)


@pytest.mark.parametrize(("kind", "access", "looked_at"), [("fifo", "r", [7]), ("pipe", "w", [8]), ("socket", "r", [])])
def test_who_is_at_the_other_end_of_a_pipe_and_outside_of_the_job_is_looked_at(
    kind: str, access: str, looked_at: list[int]
) -> None:
    """Whether that process works tells whether data will come, or be taken; a server works for others, too."""
    history = History()
    history.add(
        0.0,
        Descriptor(
            pid=PID, fd=3, kind=kind, target="/data/examples", access=access, readers=(8, PID), writers=(7, PID)
        ),
    )

    assert feeding(history, [PID]) == looked_at


def test_who_holds_a_lock_from_outside_of_the_job_is_looked_at_with_what_it_has_started() -> None:
    """The holder comes first, for there is a bound."""
    history = History()
    lock = Descriptor(
        pid=PID, fd=3, kind="file", target="/data/cache.lock", lock_holders=(PID, 30), holders_started=(7,)
    )
    history.add(0.0, lock)

    assert feeding(history, [PID]) == [30, 7]


@pytest.mark.live
def test_a_watch_looks_at_who_writes_from_outside_into_what_its_job_reads() -> None:
    """Here that is the test itself, which holds the other end of the program's stdin."""
    program = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    watch = Watch([program.pid], session(root_pids=(program.pid,)), eager=True)
    ends = time.monotonic() + PATIENCE_SECONDS
    while watch.case().history.latest(ProcessUsage, os.getpid()) is None and time.monotonic() < ends:
        time.sleep(min(0.2, watch.tick()))
    seen = watch.case().history.latest(ProcessUsage, os.getpid())
    watch.close()
    program.communicate()

    assert seen is not None
    assert os.getpid() not in watch.case().job.members
