"""A training thread that waits for data: which loop waits, and how long a wait lasts as far as samples tell."""

import pytest

from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Descriptor, Frame, Process, Socket, SourceLine, Stack, Thread, Wait
from tests.training import BACKWARD, FORWARD, OPTIMIZER, PID, TORCH, TRAIN, Training, level

LOADER = f"{TORCH}/utils/data"
WAITS = Frame("_try_get_data", f"{LOADER}/dataloader.py", 1275)
FETCHES = (Frame("fetch", f"{LOADER}/_utils/fetch.py", 52), Frame("_worker_loop", f"{LOADER}/_utils/worker.py", 349))
POLL = Wait(call="poll", number=7, kind="poll", remaining_seconds=4.0)


WORKERS = (710, 711)


def with_workers(job: Training) -> Training:
    """A training that has two DataLoader workers."""
    for pid in WORKERS:
        job.add(Process(pid=pid, start_ticks=2, parent_pid=PID, name="pt_data_worker", command=("python",), python=True,
                        torch_loaded=True))  # fmt: skip
    return job


def work(job: Training, line: int) -> None:
    """The workers compute, now in this line."""
    at = job.history.at
    for pid in WORKERS:
        job.add(
            Thread(pid=pid, tid=pid, name="pt_data_worker", state="R", cpu_seconds=at, run_seconds=at,
                   voluntary_switches=0, read_calls=0, write_calls=0),
            Stack(pid=pid, tid=pid, frames=(Frame("__getitem__", TRAIN, line), *FETCHES), samples=5, span_seconds=0.4),
        )  # fmt: skip


def waits_for_data(job: Training, function: str) -> Verdict:
    """The verdict after this function has waited 20 s for the batches of two workers, which compute."""
    with_workers(job)
    for look in range(40):
        job.goes_on(0.5, [(WAITS, Frame(function, TRAIN, 44))], run_share=0.01, wait=POLL)
        work(job, 60 + look % 3)
    return job.verdict()


@pytest.mark.parametrize(
    ("waits_in", "passes", "starved"),
    [
        ("train", (BACKWARD, OPTIMIZER), True),
        ("importance", (BACKWARD, OPTIMIZER), False),  # after the training, in a loop of its own
        ("importance", (BACKWARD,), True),  # it was not seen which loop makes steps
    ],
)
def test_a_training_starves_where_the_loop_that_makes_steps_waits_for_data(
    waits_in: str, passes: tuple[tuple[Frame, ...], ...], starved: bool
) -> None:
    """Another that gathers statistics may be as slow as its data."""
    verdict = waits_for_data(Training(card=False).goes_on(10.0, [FORWARD, *passes]), waits_in)

    assert ((verdict.state, verdict.cause) == ("slow", "starved_by_transforms")) is starved


@pytest.mark.parametrize(("called", "starved"), [(("loss.backward",), False), (("loss.backward", "opt.step"), True)])
def test_a_loop_that_makes_gradients_and_by_its_text_no_step_does_not_train(
    called: tuple[str, ...], starved: bool
) -> None:
    """An estimate of the Fisher information."""
    job = Training(card=False)
    job.add(SourceLine(file=TRAIN, line=44, text="for x in loader:", loops=("for",), loop_calls=called))

    assert (waits_for_data(job, "importance").cause == "starved_by_transforms") is starved


@pytest.mark.parametrize(("watched", "cause"), [(True, "bursty_loading"), (False, "starved_by_transforms")])
def test_what_happens_between_two_records_of_stacks_is_no_part_of_a_wait(watched: bool, cause: str) -> None:
    """Four steps, and then a wait that was sampled for 0.65 s, or only seen to begin: it may have ended at once."""
    job, wait = with_workers(Training(card=False)), (WAITS, Frame("train", TRAIN, 11))
    while job.history.at < 40.0:
        began = job.history.at
        for number in range(12):
            frames = (FORWARD, BACKWARD, OPTIMIZER)[number % 3]
            sample = Stack(pid=PID, tid=PID, frames=frames, samples=1, span_seconds=0.04)
            job.history.add(began + 0.04 * (number + 1), sample)
        ended = began + 0.48 + (0.65 if watched else 0.05)
        seen = Stack(pid=PID, tid=PID, frames=wait, samples=13 if watched else 3, span_seconds=ended - began - 0.48)
        job.history.add(ended, seen)
        job.history.at = began + 1.13
        job.add(Thread(pid=PID, tid=PID, name="python", state="S", cpu_seconds=began / 2, run_seconds=began / 2, wait=POLL,
                       voluntary_switches=0, ran_ago_seconds=0.01, read_calls=0, write_calls=0))  # fmt: skip
        work(job, 60 + int(began) % 3)

    assert job.verdict().cause == cause


RECEIVE = Wait(call="recvfrom", number=45, kind="recv", fd=6, forever=True)
SERVER = 720


def asks(
    job: Training, seconds: float, serves: float = 0.01, rate: float = 100.0, peers: tuple[int, ...] = (SERVER,)
) -> Training:
    """The training thread waits for a server of the job, answer by answer.

    Args:
        serves: share of the time that the server computes.
        rate: bytes that it sends, a second.
    """
    job.add(
        Process(pid=SERVER, start_ticks=3, parent_pid=PID, name="python", command=("python", "serve.py"), python=True)
    )
    for turn in range(round(seconds / 0.5)):
        socket = Socket(family="tcp", state="ESTABLISHED", peer="127.0.0.1:7000", peer_pids=peers,
                        received_bytes=int(rate * job.history.at))  # fmt: skip
        job.add(Descriptor(pid=PID, fd=6, kind="socket", target="socket:[6]", inode=6, socket=socket))
        job.goes_on(0.5, [(Frame("lookup", TRAIN, 50), Frame("train", TRAIN, 11))], run_share=0.01, wait=RECEIVE)
        at = job.history.at
        job.add(
            Thread(pid=PID, tid=PID, name="python", state="S", cpu_seconds=at / 100, run_seconds=at / 100, wait=RECEIVE,
                   voluntary_switches=20 * turn, ran_ago_seconds=0.01, read_calls=0, write_calls=0),
            Thread(pid=SERVER, tid=SERVER, name="python", state="S", cpu_seconds=at * serves, run_seconds=at * serves,
                   voluntary_switches=20 * turn, ran_ago_seconds=0.01),
            Stack(pid=SERVER, tid=SERVER, frames=(Frame("serve", "/app/serve.py", 9),), samples=5, span_seconds=0.4),
        )  # fmt: skip
    return job


@pytest.mark.parametrize(
    ("serves", "cause", "culprit"),
    [(0.01, "starved_by_network", "lookup (train.py:50)"), (0.9, "starved_by_transforms", "serve (serve.py:9)")],
)
def test_a_training_thread_that_asks_a_server_for_its_data_is_starved_by_it(
    serves: float, cause: str, culprit: str
) -> None:
    """By the way there, or by what the server computes for each answer."""
    job = Training(card=False)
    for _ in range(8):
        asks(job.goes_on(0.5, [FORWARD, BACKWARD, OPTIMIZER]).goes_on(0.5, [OPTIMIZER]), 2.0, serves)
    verdict = job.verdict()

    assert (verdict.state, verdict.cause, verdict.culprits[0].frame) == ("slow", cause, culprit)


@pytest.mark.parametrize(("sender", "starved"), [(SERVER, True), (PID + 1, False)], ids=["server", "rank"])
def test_what_comes_from_another_rank_is_no_data_that_is_asked_for(sender: int, starved: bool) -> None:
    """mpi4py shows no frame of its own: the line of the program receives from a rank, which may be late."""
    job = Training(card=False)
    for rank in (0, 1):
        job.add(Process(pid=PID + rank, start_ticks=1, parent_pid=1, name="python", command=("python",), python=True,
                        torch_loaded=True, rank=rank, world_size=2))  # fmt: skip
    for _ in range(8):
        asks(job.goes_on(0.5, [FORWARD, BACKWARD, OPTIMIZER]).goes_on(0.5, [OPTIMIZER]), 2.0, peers=(sender,))
    verdict = job.verdict()

    assert ("starved_by_network" in {verdict.cause, *(one.cause for one in verdict.findings)}) is starved


@pytest.mark.parametrize(
    ("called", "rate", "seconds", "said"),
    [
        (("loss.backward", "opt.step"), 100.0, 60.0, ("slow", "starved_by_network", "medium")),
        (("loss.backward", "opt.step"), 1e6, 60.0, ("slow", "starved_by_network", "medium")),
        (("loss.backward", "opt.step"), 100.0, 15.0, ("inconclusive", None, "low")),  # a pause between two steps?
        (("rows.append",), 1e6, 60.0, ("busy", "downloading", "certain")),  # a table that is fetched ahead of training
        (("rows.append",), 100.0, 60.0, ("busy", "waiting_on_work", "medium")),  # mere answers
    ],
)
def test_what_is_asked_for_is_for_steps_where_the_loop_around_makes_them(
    called: tuple[str, ...], rate: float, seconds: float, said: tuple[str, str | None, str]
) -> None:
    """None is long enough to be met in a sample."""
    job = Training(card=False)
    job.add(SourceLine(file=TRAIN, line=11, text="x = lookup(keys)", loops=("while",), loop_calls=called))
    verdict = asks(job, seconds, rate=rate).verdict()

    assert (verdict.state, verdict.cause, level(verdict.confidence)) == said
