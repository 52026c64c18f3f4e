"""Python that the training thread runs: hooks, optimizers, plain loops, and what keeps it from the GIL."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
import pytest

from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import diagnose, judge
from perfwatch.triage.history import History
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import (
    Affinity,
    Frame,
    GpuProcess,
    Process,
    ProcessUsage,
    Reading,
    SourceLine,
    Stack,
    Thread,
    Wait,
)
from tests.cards import UUID
from tests.recorded import RECORDINGS, load_case
from tests.sessions import session
from tests.training import BACKWARD, FORWARD, OPTIMIZER, PID, TORCH, TRAIN, Training, level, level_in
from tests.triage.retold import retold

# Python within and beside the steps: hooks that torch calls back, optimizers of one's own, and other work of the training thread.


HOOK = Frame("look_at", TRAIN, 30)
WRAPPER = Frame("BackwardHook._set_user_hook.<locals>.hook", f"{TORCH}/utils/hooks.py", 137)
NO_GRAD = Frame("context_decorator.<locals>.decorate_context", f"{TORCH}/utils/_contextlib.py", 124)
INNER = Frame("Module._call_impl.<locals>.inner", f"{TORCH}/nn/modules/module.py", 1845)
APPLY = Frame("Function.apply", f"{TORCH}/autograd/function.py", 625)
STEPPED = Frame("Optimizer.profile_hook_step.<locals>.wrapper", f"{TORCH}/optim/optimizer.py", 538)
CHECKPOINT = Frame("CheckpointFunction.forward", f"{TORCH}/utils/checkpoint.py", 250)
LOOPS = [(Frame("look_at", TRAIN, line), *BACKWARD) for line in (30, 31)]


@pytest.mark.parametrize(
    ("frames", "called"),
    [
        ((HOOK, *BACKWARD), True),
        ((HOOK, WRAPPER, *BACKWARD), True),
        ((HOOK, NO_GRAD, *BACKWARD), True),
        ((HOOK, INNER), True),
        ((HOOK, APPLY), True),
        ((HOOK, STEPPED), True),
        ((Frame("mean", "/usr/lib/python3.12/statistics.py", 400), HOOK, *BACKWARD), True),
        ((Frame("Tensor.norm", f"{TORCH}/_tensor.py", 900), HOOK, *BACKWARD), False),  # torch computes
        ((Frame("Net.forward", TRAIN, 8), INNER), False),  # the model itself, of which a hook is asked as well
        ((Frame("Own.step", TRAIN, 50), NO_GRAD, STEPPED), True),  # an optimizer of its own
        ((HOOK, CHECKPOINT, APPLY), False),  # a part of the model that is computed again
        ((HOOK, *FORWARD), False),
    ],
)
def test_hooks_and_functions_of_its_own_are_called_back(frames: tuple[Frame, ...], called: bool) -> None:
    """The frame of torch that makes the call tells: here a loop of Python, two thirds of the time."""
    job, own = Training(card=False), next(frame for frame in frames if frame.file == TRAIN)
    below = () if frames[-1].file == TRAIN and frames[-1] != own else (Frame("train", TRAIN, 13),)
    turns = []
    for line in (own.line, own.line + 1):
        job.add(SourceLine(file=TRAIN, line=line, text="seen += 1", loops=("for",)))
        turns.append((*(Frame(own.function, TRAIN, line) if one == own else one for one in frames), *below))
    steps = [turns[number % 2] for number in range(13)] + [FORWARD, BACKWARD, OPTIMIZER] * 2
    verdict = job.goes_on(20.0, steps, owns_gil=True).verdict()

    assert ((verdict.state, verdict.cause) == ("slow", "host_bound_python")) is called
    assert ("Python that torch calls back within each step" in verdict.summary) is called


@pytest.mark.parametrize(
    ("hooked", "owns_gil", "calls", "loops", "confidence"),
    [
        (13, True, ("round",), ("for",), "certain"),
        (5, True, (), ("for",), "high"),
        (1, True, (), ("for",), None),
        (13, False, (), ("for",), None),  # operations of torch
        (13, True, ("native.crunch",), ("for",), None),  # an extension may keep the GIL as well
        (13, True, (), (), None),  # no loop is known
    ],
)
def test_only_loops_of_python_that_keep_the_gil_hold_steps_up(
    hooked: int, owns_gil: bool, calls: tuple[str, ...], loops: tuple[str, ...], confidence: str | None
) -> None:
    """A loop of its own with tensors in it is training, and so is a brief one."""
    job = Training(card=False)
    for line in (30, 31):
        job.add(SourceLine(file=TRAIN, line=line, text="seen += 1", calls=calls, loops=loops))
    steps = [LOOPS[number % 2] for number in range(hooked)] + [FORWARD, BACKWARD, OPTIMIZER] * ((20 - hooked) // 3)
    verdict = job.goes_on(20.0, steps, owns_gil=owns_gil).verdict()

    assert level_in(verdict, "host_bound_python") == confidence
    assert (verdict.cause == "host_bound_python") is (confidence is not None)
    assert confidence is None or (verdict.culprits[0].frame or "").startswith("look_at (train.py:3")


def test_where_hardly_a_dump_was_taken_a_loop_of_python_is_healthy_less_surely() -> None:
    """Samples do not show which thread has the GIL, dumps do."""
    job = Training(card=False)
    for line in (30, 31):
        job.add(SourceLine(file=TRAIN, line=line, text="seen += 1", loops=("for",)))
    job.goes_on(22.0, [*LOOPS, FORWARD, OPTIMIZER], owns_gil=None)
    verdict = job.verdict()

    assert level_in(verdict, "host_bound_python") == "low"
    assert (verdict.state, verdict.cause, level(verdict.confidence)) == ("healthy", "cpu_training", "medium")
    assert "which torch calls back" in verdict.summary


@pytest.mark.parametrize("case", ["hook_of_small_tensors", "extension_that_keeps_the_gil"])
def test_other_work_that_is_called_back_is_no_python(case: str) -> None:
    """Recorded beside neighbours that take the CPUs: what is called back is not what is slow."""
    assert level_in(retold(RECORDINGS / "host_bound_python" / "lookalike" / case), "host_bound_python") is None


@pytest.mark.parametrize(
    ("calls", "owns_gil", "told"), [((), True, True), (("update.mul", "p.add_"), True, False), ((), False, False)]
)
def test_an_optimizer_of_its_own_that_goes_through_numbers_holds_steps_up(
    calls: tuple[str, ...], owns_gil: bool, told: bool
) -> None:
    """One that goes through its parameters, with an operation of torch for each, is an optimizer as any other."""
    job = Training(card=False)
    for line in (30, 31):
        job.add(SourceLine(file=TRAIN, line=line, text="m[i] += g[i]", calls=calls, loops=("for", "for")))
    steps = [(Frame("Own.step", TRAIN, 30 + number % 2), NO_GRAD, STEPPED, BACKWARD[1]) for number in range(10)]
    verdict = job.goes_on(20.0, [*steps, FORWARD, BACKWARD], owns_gil=owns_gil).verdict()

    assert ((verdict.state, verdict.cause) == ("slow", "host_bound_python")) is told


@pytest.mark.parametrize(
    ("inner", "doubted"),
    [
        ((), True),
        ((Frame("raw_decode", "/usr/lib/python3.12/json/decoder.py", 353),), True),
        ((Frame("relu", f"{TORCH}/nn/functional.py", 1500),), False),
    ],
)
def test_a_model_that_reads_texts_in_its_forward_is_doubted(inner: tuple[Frame, ...], doubted: bool) -> None:
    """What keeps the GIL there is no arithmetic of torch; the line is reported."""
    own = (*inner, Frame("forward", TRAIN, 8), *FORWARD)
    verdict = Training(card=False).goes_on(20.0, [own, own, own, BACKWARD, OPTIMIZER], owns_gil=True).verdict()

    assert (verdict.state, verdict.cause) == ("healthy", "cpu_training")
    assert (level(verdict.confidence) != "certain") is doubted
    assert ("plain Python, at forward (train.py:8)" in verdict.summary) is doubted


@pytest.mark.parametrize(("caller", "told"), [(INNER, True), (APPLY, False)])
def test_numpy_in_a_hook_is_reported_and_in_an_operation_of_the_models_own_it_is_not(caller: Frame, told: bool) -> None:
    """A function with a backward of its own may be the model; one that only looks at activations is not."""

    def changed(reading: Reading) -> Reading:
        if not isinstance(reading, Stack):
            return reading
        hooked = reading.frames[:1] and any(frame.function.endswith(".hook") for frame in reading.frames)
        frames = tuple(caller if hooked and frame.function == INNER.function else frame for frame in reading.frames)
        return msgspec.structs.replace(reading, frames=frames)

    verdict = retold(RECORDINGS / "host_bound_python" / "fires" / "hook_in_numpy", changed)

    assert ((verdict.state, verdict.cause) == ("slow", "host_bound_python")) is told
    assert level(verdict.confidence) != "certain"


OWN = [(Frame("edit_distance", TRAIN, line), Frame("train", TRAIN, 18)) for line in (30, 31)]


def mixed(torn: int, owned: int) -> Verdict:
    """Steps that are mostly the program's own work, which so many dumps found with the GIL and without."""
    job = Training(card=False).goes_on(1.5, [FORWARD, BACKWARD, OPTIMIZER], owns_gil=None)
    for number in range(owned + torn):
        torn_now = number * torn // (owned + torn) < (number + 1) * torn // (owned + torn)
        job.goes_on(1.0, OWN, owns_gil=not torn_now, samples=1).goes_on(0.5, OWN[:1], owns_gil=None)
    return job.goes_on(1.5, [FORWARD, BACKWARD, OPTIMIZER], owns_gil=None).verdict()


@pytest.mark.parametrize(("torn", "owned", "told"), [(0, 10, True), (1, 9, True), (5, 5, False), (9, 1, False)])
def test_one_dump_that_was_torn_does_not_hide_that_python_computes(torn: int, owned: int, told: bool) -> None:
    """Operations of torch are without the GIL in most dumps, not in one of ten: then it may be the model, and the place is reported."""
    verdict = mixed(torn, owned)

    expected = ("serial_loading", "high") if told else ("cpu_training", "medium")
    assert (verdict.cause, level(verdict.confidence)) == expected
    assert "at edit_distance (train.py:3" in verdict.summary


# A model, or an optimizer, whose time goes into plain Python: training by its frames, and not surely healthy.


CALLS = Frame("Module._call_impl", f"{TORCH}/nn/modules/module.py", 1789)
CUTS = tuple((Frame("forward", TRAIN, line), CALLS, Frame("train", TRAIN, 12)) for line in (30, 31))


@pytest.mark.parametrize(
    ("calls", "loops", "owns_gil", "confidence"),
    [
        (("ord",), ("for",), None, 0.65),
        (("ord",), ("for",), True, 0.65),
        (("ord",), ("for",), False, 0.95),  # operators on tensors
        (("torch.tanh",), ("for",), None, 0.95),
        (("ord",), (), None, 0.95),  # no loop is known: one line of arithmetic
    ],
)
def test_a_forward_pass_in_loops_of_builtins_is_healthy_less_surely(
    calls: tuple[str, ...], loops: tuple[str, ...], owns_gil: bool | None, confidence: float
) -> None:
    """Texts that are cut into tokens within the model: few dumps say who has the GIL, but the text of the lines is known."""
    job = Training(card=False)
    for line in (30, 31):
        job.add(SourceLine(file=TRAIN, line=line, text="seen += 1", calls=calls, loops=loops))

    verdict = job.goes_on(22.0, [*CUTS, FORWARD, BACKWARD, *CUTS, OPTIMIZER], owns_gil=owns_gil).verdict()

    assert (verdict.state, verdict.cause, verdict.confidence) == ("healthy", "cpu_training", confidence)
    assert ("plain Python, at forward (train.py:3" in verdict.summary) is (confidence == 0.65)


FETCH = (
    Frame("__getitem__", TRAIN, 44),
    Frame("fetch", f"{TORCH}/utils/data/_utils/fetch.py", 54),
    Frame("train", TRAIN, 12),
)


@pytest.mark.parametrize(("stacks_beside", "confidence"), [(8, 0.65), (23, 0.95)])
def test_making_batches_that_nearly_costs_a_verdict_is_told_beside_a_healthy_one(
    stacks_beside: int, confidence: float
) -> None:
    """An eighth of the time, or a twenty-fifth: less than what a cause of its own needs."""
    steps = [FORWARD, BACKWARD, OPTIMIZER] * 8
    verdict = Training(card=False).goes_on(25.0, [FETCH, *steps[:stacks_beside]]).verdict()

    assert (verdict.state, verdict.cause, verdict.confidence) == ("healthy", "cpu_training", confidence)
    assert ("prepares batches in the training thread" in verdict.summary) is (confidence == 0.65)


@pytest.mark.parametrize(("hooks", "confidence"), [(7, 0.65), (1, 0.95)])
def test_a_training_that_is_mostly_in_hooks_is_healthy_less_surely(hooks: int, confidence: float) -> None:
    """They compute with tensors, as a training does, and look at it only; with every validation there may be more of them."""
    inner = Frame("Module._call_impl.<locals>.inner", f"{TORCH}/nn/modules/module.py", 1845)
    hook = (Frame("Report.make_hook.<locals>.hook", TRAIN, 51), inner, Frame("train", TRAIN, 12))

    verdict = (
        Training(card=False).goes_on(22.0, [*[hook] * hooks, FORWARD, FORWARD, BACKWARD, BACKWARD, OPTIMIZER]).verdict()
    )

    assert (verdict.state, verdict.cause, verdict.confidence) == ("healthy", "cpu_training", confidence)
    assert ("hooks, mostly at" in verdict.summary) is (confidence < 0.9)


# A loop that trains without autograd and without an optimizer of torch's looks like a search that does not converge.


FIT = [(Frame("fit", TRAIN, line),) for line in (31, 32, 33)]


def turned(update: str, *, trained: bool = False) -> Verdict:
    """What is said of a loop that turned for more than six minutes, and has this among its lines."""
    job = Training(card=False)
    for line, text in ((31, "error = x @ w - y"), (32, update), (33, "rounds += 1")):
        job.add(SourceLine(file=TRAIN, line=line, text=text, loops=("while",), loop_calls=("error.square",)))
    if trained:
        job.goes_on(20.0, [FORWARD, BACKWARD, OPTIMIZER])
    return job.goes_on(400.0, FIT).verdict()


@pytest.mark.parametrize("update", ["w -= rate * (x.T @ error)", "self.w.sub_(rate * g)", "w.add_(g, alpha=-rate)"])
def test_a_loop_that_takes_something_down_a_gradient_may_be_training(update: str) -> None:
    """Or it searches and never finds: that it turns for ever is said less surely than of other loops."""
    said = turned(update)

    assert (said.cause, said.confidence) == ("endless_python", 0.65)


def test_a_program_that_trains_with_an_optimizer_does_not_descend_by_hand() -> None:
    """There a line of that form is arithmetic as any other."""
    said = turned("w -= rate * (x.T @ error)", trained=True)

    assert said.cause == "endless_python"


@pytest.mark.parametrize("update", ["left -= 1", "w = w * 2", "rounds += 1"])
def test_a_loop_that_counts_down_or_computes_is_endless(update: str) -> None:
    """It is no descent."""
    said = turned(update)

    assert said.cause == "endless_python"


# When a training thread that goes on is kept from the GIL, and when something else slows it: one recorded job, changed in one point.


CASE = RECORDINGS / "contended_lock" / "fires" / "telemetry_thread"
TRAINER, HELPER = 14135, 14137
POLLS = (
    Frame("get", "/usr/lib/python3.11/queue.py", 180),
    Frame("main", "/home/user/tts/train.py", 48),
)


def judged(change: Callable[[Reading], Reading] = lambda reading: reading) -> Verdict:
    """What is said of the job once every reading of it is changed."""
    whole = load_case(CASE)
    records = tuple(msgspec.structs.replace(one, reading=change(one.reading)) for one in whole.records)
    return diagnose(replace(whole, records=records))


def waiting(**differs: object) -> Callable[[Reading], Reading]:
    """A change of what the training thread sleeps in."""

    def change(reading: Reading) -> Reading:
        if isinstance(reading, Thread) and reading.tid == TRAINER and isinstance(reading.wait, Wait):
            return msgspec.structs.replace(reading, wait=msgspec.structs.replace(reading.wait, **differs))
        return reading

    return change


def owned_by(owner: int | None) -> Callable[[Reading], Reading]:
    """A change of who owns the GIL in every dump; None: no dump tells."""

    def change(reading: Reading) -> Reading:
        if isinstance(reading, Stack) and reading.owns_gil is not None:
            return msgspec.structs.replace(reading, owns_gil=None if owner is None else reading.tid == owner)
        return reading

    return change


def polling(reading: Reading) -> Reading:
    """The training thread asks a queue of its own again and again, for a few milliseconds each time."""
    return (
        msgspec.structs.replace(reading, frames=POLLS)
        if isinstance(reading, Stack) and reading.tid == TRAINER
        else reading
    )


def without_a_cpu(reading: Reading) -> Reading:
    """The training thread could run whenever it is looked at."""
    if isinstance(reading, Thread) and reading.tid == TRAINER:
        return msgspec.structs.replace(reading, state="R", wait=None)
    return reading


def test_the_thread_that_has_the_gil_is_named_with_its_line_and_a_way_out() -> None:
    """It computes in Python all the time, and the training thread gets 6 % of a core."""
    verdict = judged()
    (culprit,) = verdict.culprits

    assert (verdict.cause, culprit.tid, culprit.thread) == ("contended_lock", HELPER, "telemetry")
    assert culprit.frame is not None
    assert culprit.frame.startswith("run (train.py:")
    assert "separate process" in verdict.next[0]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(owned_by(TRAINER), id="the trainer owns the GIL itself"),
        pytest.param(owned_by(0), id="the helper works without the GIL"),
        pytest.param(waiting(remaining_seconds=3.0), id="it waits for seconds, as for a batch"),
        pytest.param(waiting(remaining_seconds=None, forever=True), id="it waits for a lock of the program"),
        pytest.param(without_a_cpu, id="it has no CPU"),
        pytest.param(polling, id="it polls a queue"),
    ],
)
def test_what_only_looks_alike_is_not_blamed_on_the_gil(change: Callable[[Reading], Reading]) -> None:
    """In one point each it is another job than the one that was recorded."""
    verdict = judged(change)
    named = {verdict.cause, *(one.cause for one in verdict.findings)}

    assert "contended_lock" not in named


def test_where_no_dump_tells_the_owner_nobody_is_blamed_and_it_is_said() -> None:
    """Missing is not zero."""
    verdict = judged(owned_by(None))
    reasons = [one.reason for one in verdict.missing]

    assert verdict.cause is None
    assert any("which thread owns the GIL" in reason for reason in reasons)


@pytest.mark.parametrize("owner", [None, 0, TRAINER])
def test_a_training_thread_that_waits_for_the_gil_most_of_its_time_is_not_healthy(owner: int | None) -> None:
    """Whoever owns it."""
    assert judged(owned_by(owner)).state != "healthy"


# Whose threads count where ranks share the CPUs of a machine, and where each has CPUs of its own; what a crowd may be called.


NODE = tuple(range(8))


def ranks(*cpus: tuple[int, ...], beside: tuple[int, float, float] | None = None) -> Verdict:
    """Ranks that may run there, each with a training thread, a worker's and twelve more, which run or wait for a CPU all the time.

    ``beside``: a thread of another process, how much it runs and how much it waits for a CPU.
    """
    history = History(at=20.0)
    for rank, allowed in enumerate(cpus):
        pid, worker = 20 + rank, 40 + rank
        for one, parent, name in ((pid, 1, "python"), (worker, pid, "pt_data_worker")):
            history.add(
                0.0,
                Process(pid=one, start_ticks=one, parent_pid=parent, name=name, command=("python", "train.py"), python=True,
                        torch_loaded=True, rank=rank, environment={"RANK": str(rank)}),
            )  # fmt: skip
        history.add(10.0, Affinity(pid=pid, cpus=allowed))
        for number in range(41):
            at = number / 2
            for one, tid in ((pid, pid), (worker, worker), *((pid, 100 * pid + other) for other in range(12))):
                history.add(at, wants(one, tid, 0.5 * at, 0.5 * at))
            frames = (FORWARD, BACKWARD, OPTIMIZER)[number % 3]
            history.add(at, Stack(pid=pid, tid=pid, frames=frames, samples=5, span_seconds=0.4))
            if beside is not None:
                history.add(at, wants(beside[0], 7777, beside[1] * at, beside[2] * at))
    return judge(Case(history, session(mode="attach", root_pids=(20, 21))))


def wants(pid: int, tid: int, ran: float, waited: float) -> Thread:
    """A thread that ran for so long, and was runnable for so long without running."""
    return Thread(
        pid=pid, tid=tid, name="python", state="R", cpu_seconds=ran, run_seconds=ran, run_delay_seconds=waited
    )


@pytest.mark.parametrize(
    ("cpus", "words", "each"),
    [
        ((NODE, NODE), "28 threads of the job compete for 8 CPUs", 4),
        ((NODE[:4], NODE[4:]), "14 threads of the job compete for 4 CPUs", 4),  # srun --cpu-bind
        ((NODE[:4], NODE[2:]), "28 threads of the job compete for 4 CPUs", 2),
    ],
)
def test_only_threads_that_may_run_on_the_cpus_of_a_rank_crowd_it(
    cpus: tuple[tuple[int, ...], ...], words: str, each: int
) -> None:
    """A worker that was not asked runs where its rank does; the CPUs are to be shared among the ranks that may run on them."""
    verdict = ranks(*cpus)

    assert (verdict.state, verdict.cause) == ("slow", "oversubscribed_threads")
    assert words in verdict.summary
    assert verdict.next[0] == f"OMP_NUM_THREADS={each}"


@pytest.mark.parametrize(
    "beside",
    [
        (40, 0.004, 0.3),  # a worker's feeder thread: it asks for little, and waits for it beside threads that compute
        (90, 1.0, 0.0),  # a writer outside of the job, which is looked at as well
    ],
)
def test_who_asks_for_little_and_who_is_not_of_the_job_crowds_nobody(beside: tuple[int, float, float]) -> None:
    """Both want a CPU for more than a quarter of the time."""
    assert "28 threads of the job compete for 8 CPUs" in ranks(NODE, NODE, beside=beside).summary


def test_a_crowd_of_workers_with_one_thread_each_is_told_with_doubt() -> None:
    """There may be too much to do for these CPUs, whoever does it: two workers in place of five would bring no more."""
    recording = load_case(RECORDINGS / "oversubscribed_threads" / "fires" / "five_workers_of_one_thread")

    verdict = diagnose(recording, 6.0)

    assert verdict.cause == "oversubscribed_threads"
    assert verdict.confidence < 0.8


# Copies of the model in memory, as those make who keep its best weights, are told where they take a good part of the time.


COPIES_OF_THE_MODEL_CASE = RECORDINGS / "slow_checkpoint" / "fires" / "copies_of_the_best_weights"
FILE = "/home/user/train/c11.py"
KEEPS = "self.model = {name: weight.clone() for name, weight in model.state_dict().items()}"


def cloned(reading: Reading) -> Reading:
    """The same program, which clones what state_dict() gives: all of that is at one line, without a frame of torch's."""
    if not isinstance(reading, Stack) or not any(frame.function == "deepcopy" for frame in reading.frames):
        return reading
    keeps = next(number for number, frame in enumerate(reading.frames) if frame.function == "BestKeeper.update")
    return msgspec.structs.replace(reading, frames=reading.frames[keeps:])


def test_a_deep_copy_of_the_model_in_each_step_is_told_with_its_line() -> None:
    """Nine tenths of the time; nothing of it is training."""
    verdict = retold(COPIES_OF_THE_MODEL_CASE)

    assert verdict.summary.startswith(
        "copies of the model in memory take 90% of the time: at least 11 copies in 7.3 s, at update"
    )
    assert verdict.owner == "user_code"


def test_clones_of_its_state_are_told_the_same_way() -> None:
    """By the line alone: it asks for the state and clones it."""
    line = SourceLine(file=FILE, line=37, text=KEEPS, calls=("weight.clone", "model.state_dict"))

    assert retold(COPIES_OF_THE_MODEL_CASE, cloned, line).summary.startswith("copies of the model in memory take")


# What grows while no steps are counted: a graph that a line keeps, or the share of one function; memory grows with both.


CASES = RECORDINGS / "regressed"
KEPT_GRAPH_CASE = CASES / "fires" / "graph_carried_through_the_steps"
MANY_LOSSES = CASES / "lookalike" / "many_losses_of_one_graph"
STEP = (FORWARD, BACKWARD, OPTIMIZER)
SCORES = (Frame("update", "/app/scores.py", 14), Frame("train", TRAIN, 30))


def test_a_graph_that_is_carried_through_the_steps_is_told_with_its_line_and_the_way_out() -> None:
    """No steps are counted in a job that is attached to: the line, its share and the memory tell."""
    verdict = retold(KEPT_GRAPH_CASE)

    assert (verdict.state, verdict.cause) == ("slow", "regressed")
    assert "p11_reservoir.py:44" in verdict.summary
    assert "detach" in verdict.next[0]


def test_memory_that_rests_means_a_graph_that_is_freed_after_all() -> None:
    """Many losses of one graph need ``retain_graph`` as well."""

    def rests(reading: Reading) -> Reading:
        return (
            msgspec.structs.replace(reading, resident_bytes=1 << 30) if isinstance(reading, ProcessUsage) else reading
        )

    assert retold(KEPT_GRAPH_CASE, rests).state == "healthy"


def test_backward_passes_that_keep_their_graph_nearly_all_the_time_are_asked_about() -> None:
    """An allocator may have had room for what grows: a healthy training that looks so is told less surely, with the line."""
    verdict = retold(MANY_LOSSES)

    assert (verdict.state, verdict.confidence) == ("healthy", 0.65)
    assert "keep their graph, at <module> (keeps.py:10): does it grow with every step?" in verdict.summary


def test_a_line_that_keeps_no_graph_is_no_growing_graph() -> None:
    """Memory may grow for many reasons, and a large batch has a long backward pass."""

    def frees(reading: Reading) -> Reading:
        if not isinstance(reading, SourceLine):
            return reading
        return msgspec.structs.replace(reading, text=reading.text.replace("retain_graph=True", ""))

    assert retold(KEPT_GRAPH_CASE, frees).state == "healthy"


def watched(scores: list[int], megabytes: list[int]) -> Training:
    """A job that is attached to: in each twenty seconds so many of ten samples are in the metric, and memory is so large."""
    job = Training(card=False)
    for share, size in zip(scores, megabytes, strict=True):
        for _ in range(4):
            job.goes_on(5, [*[SCORES] * share, *(STEP * 3)[: 10 - share]])
            job.add(
                ProcessUsage(
                    pid=PID,
                    state="R",
                    threads=1,
                    cpu_seconds=job.history.at,
                    major_faults=0,
                    minor_faults=0,
                    resident_bytes=size << 20,
                )
            )
    return job


def test_a_metric_over_everything_since_the_start_makes_steps_longer() -> None:
    """Its share is all that can be seen from outside."""
    verdict = watched([4, 5, 7, 8, 9], [800, 900, 1000, 1100, 1200]).verdict()

    assert (verdict.state, verdict.cause) == ("slow", "regressed")
    assert verdict.culprits[0].frame is not None
    assert verdict.culprits[0].frame.startswith("update (scores.py")


@pytest.mark.parametrize(
    ("scores", "megabytes"),
    [
        ([7, 7, 7, 7, 7], [800, 900, 1000, 1100, 1200]),  # the same part of each step
        ([4, 5, 7, 8, 9], [800, 800, 800, 800, 800]),  # a phase: nothing is kept
        ([2, 2, 2, 2, 9], [800, 900, 1000, 1100, 1200]),  # once: another phase, or a change
        ([9, 8, 7, 5, 4], [800, 900, 1000, 1100, 1200]),  # what else a step does becomes shorter
    ],
)
def test_a_share_that_does_not_grow_all_along_with_memory_is_no_regression(
    scores: list[int], megabytes: list[int]
) -> None:
    """Each half of the evidence alone has benign reasons."""
    assert watched(scores, megabytes).verdict().cause != "regressed"


# What a program has switched on in torch, as the agent tells it, beside what shows in stacks and on the card.


STEPS = [FORWARD, BACKWARD, OPTIMIZER]
CONV = f"{TORCH}/nn/modules/conv.py"
CONVOLVES = (Frame("_conv_forward", CONV, 548), Frame("forward", CONV, 553), Frame("forward", "/app/net.py", 16))
EMPTIES = (Frame("empty_cache", f"{TORCH}/cuda/memory.py", 224), Frame("train", TRAIN, 31))
INTERVALS = [0.2] * 60


@pytest.mark.parametrize(
    ("load", "modes", "cause"),
    [
        ("tiny_kernels", ("anomaly_detection",), "debug_apis_on"),
        ("tiny_kernels", (), "host_bound_python"),
        ("tiny_kernels", None, "host_bound_python"),
        ("bf16_matmul", ("anomaly_detection",), "gpu_bound"),  # on, and the card is busy all the same
    ],
)
def test_anomaly_detection_is_named_by_the_agents_word(load: str, modes: tuple[str, ...] | None, cause: str) -> None:
    """Where no sample happens to show its frames; it holds the backward pass back, a third of the time here."""
    job = Training().goes_on(12, STEPS, load=load, samples=10).steps(900, *INTERVALS, modes=modes)

    assert job.verdict().cause == cause


def convolving(
    *besides: tuple[Frame, ...],
    modes: tuple[str, ...] | None = None,
    filled_gib: int = 12,
    falls: bool = True,
    stacks: Sequence[tuple[Frame, ...]] = (CONVOLVES, BACKWARD, BACKWARD),
) -> Verdict:
    """A network, of convolutions unless stated otherwise, whose card waits, and whose memory goes up and down."""
    job = Training(sample={"memory_used_bytes": filled_gib * 2**30})
    for second in range(13):
        held = 2**30 * (2 + (second % 2) * 6 * falls)
        job.history.add(float(second), GpuProcess(uuid=UUID, pid=PID, local_pid=PID, memory_bytes=held))
    job.goes_on(12, [*stacks, *besides], load="starved", samples=10)
    return job.steps(900, *INTERVALS, modes=modes).verdict()


def test_a_search_in_every_step_is_told_with_more_confidence_where_the_agent_says_that_cudnn_searches() -> None:
    """What it leaves behind suffices for a name."""
    inferred, told = convolving(), convolving(modes=("cudnn_benchmark",))

    assert (inferred.state, inferred.cause) == (told.state, told.cause) == ("slow", "autotuning")
    assert inferred.confidence < told.confidence


def test_what_only_looks_like_a_search_is_called_otherwise() -> None:
    """One thing is different in each."""
    others = {
        "it does not search": convolving(modes=()),
        "a line empties the cache": convolving(EMPTIES),
        "torch gives back for want of room": convolving(filled_gib=138),
        "it searched once": convolving(modes=("cudnn_benchmark",), falls=False),
    }

    assert {why: other.state for why, other in others.items()} == dict.fromkeys(others, "slow")
    assert [why for why, other in others.items() if other.cause == "autotuning"] == []


def test_a_search_beside_other_layers_is_less_sure() -> None:
    """Memory falls on a card that is far from full, and no line frees it: of what is seen only the search does that."""
    alone, beside = convolving(), convolving(FORWARD, FORWARD)

    assert beside.cause == "autotuning"
    assert beside.confidence < alone.confidence


def test_a_network_without_convolutions_has_no_search_that_frees_memory() -> None:
    """The program may have set a limit to what it may use of the card."""
    verdict = convolving(stacks=[FORWARD, BACKWARD, BACKWARD])

    assert verdict.cause == "allocator_thrash"


def test_memory_that_falls_for_a_reason_that_nobody_sees_is_less_sure_to_be_a_thrash() -> None:
    """Than on a card that was seen full."""
    unseen, full = convolving(modes=()), convolving(filled_gib=138)

    assert unseen.cause == full.cause == "allocator_thrash"
    assert unseen.confidence < full.confidence


LOOK = Frame("look", TRAIN, 70)


@pytest.mark.parametrize(
    ("text", "calls", "told"),
    [("y = x + h", (), True), ("look(frame, event, 0)", ("look",), False)],
)
def test_a_trace_function_is_on_if_the_interpreter_calls_it_and_no_line_does(
    text: str, calls: tuple[str, ...], told: bool
) -> None:
    """A handler of a program's own may have the same arguments."""
    job = Training(card=False)
    job.add(SourceLine(file=TRAIN, line=70, text="seen.append(frame.f_lineno)", traces=True))
    for line in (12, 13, 14):
        job.add(SourceLine(file=TRAIN, line=line, text=text, calls=calls))
    traced = [(LOOK, Frame(name, TRAIN, line)) for name, line in (("cell", 12), ("unroll", 13), ("train", 14))]
    verdict = job.goes_on(20.0, [FORWARD, BACKWARD, OPTIMIZER, *traced]).verdict()

    assert ((verdict.state, verdict.cause) == ("slow", "debug_apis_on")) is told
