"""The gate on model FLOPs utilisation: what fails it, what it cannot say, and what it leaves alone."""

import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from msgspec import structs
from rich.console import Console

from perfwatch.errors import UsageError
from perfwatch.gate import Model, checked, gated, told
from perfwatch.gauntlet.recorded import expected_of
from perfwatch.recording.recording import Recording, load
from perfwatch.report.headroom import HeadroomReport, of_story
from perfwatch.report.page import as_page
from perfwatch.report.story import tell, tell_whole
from perfwatch.verdict import Efficiency, ModelFigures, Spread, Verdict
from perfwatch_probes.readings import Host
from tests.command_line import perfwatch
from tests.recorded import RECORDINGS, load_case, session_of
from tests.sessions import session, verdict


def reached(share: float | None, state: str = "healthy") -> Verdict:
    """A verdict with this model FLOPs utilisation."""
    mfu = None if share is None else Spread(p50=share, p95=share, p99=share)
    model = ModelFigures(mfu=mfu, missing="" if mfu else "no step times")
    return verdict(state=state, cause="gpu_bound", efficiency=Efficiency(model=model))


@pytest.mark.parametrize(
    ("share", "state", "code"),
    [
        (0.34, "healthy", 60),
        (0.36, "healthy", 0),
        (0.34, "slow", 60),
        (0.36, "slow", 20),
        (None, "healthy", 50),
        (0.10, "hung", 30),
    ],
)
def test_a_job_that_goes_on_is_held_against_the_gate(share: float | None, state: str, code: int) -> None:
    """What is hung says so by its own code; what cannot be measured is no success."""
    assert gated(reached(share, state), 35.0)[0] == code


def test_without_a_gate_the_state_alone_gives_the_code() -> None:
    """And nothing is said."""
    assert gated(reached(0.01), None) == (0, "")


def test_a_gate_without_a_model_is_a_mistake_on_the_command_line() -> None:
    """Parameters cannot be seen from outside."""
    with pytest.raises(UsageError, match="needs to know the model"):
        checked(Model(), 35.0)
    assert checked(Model(), 35.0, recorded=True) == {}


@pytest.mark.parametrize(
    "model", [Model(params=8e9), Model(params=8e9, tokens_per_step=4e6, layers=32), Model(layers=3)]
)
def test_what_belongs_together_is_given_together(model: Model) -> None:
    """Half of it would give a wrong figure."""
    with pytest.raises(UsageError, match="belong together"):
        model.conditions()


def test_a_recording_is_told_of_its_model_afterwards() -> None:
    """The gate can be asked of a recording that knew nothing of it."""
    recording = told(Recording(session(conditions={"world_size": 2})), {"params": 8e9, "tokens_per_step": 4e6})

    assert recording.session.conditions == {"world_size": 2, "params": 8e9, "tokens_per_step": 4e6}


CASE = RECORDINGS / "gpu_bound" / "fires" / "gpu_bound-run"
# The recorded decoder: 8 layers of width 2,048, sequences of 1,024 tokens, 16 of them a step; embeddings of tokens and places
# are looked up, not multiplied with, and do not count.
MODEL = ("--params", "419.4e6", "--tokens-per-step", "16384")


def replay(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Judge the recorded training again."""
    with tempfile.TemporaryDirectory() as folder:
        return perfwatch("replay", str(session_of(CASE, Path(folder))), *arguments)


@pytest.mark.live
@pytest.mark.parametrize(("least", "code"), [("40", 0), ("50", 60)])
def test_a_training_passes_or_fails_the_gate(least: str, code: int) -> None:
    """446 of 989 TFLOP/s by 6 N T, at 177,000 tokens a second."""
    done = replay(*MODEL, "--min-mfu", least)

    assert done.returncode == code
    assert "MFU 44." in done.stderr
    assert ("from counters and stacks" in done.stderr) == (
        code == 60
    )  # what would raise it, as perfwatch headroom says it


@pytest.mark.live
def test_without_a_trace_the_headroom_names_fewer_levers_and_says_so(tmp_path: Path) -> None:
    """Of a recorded training in fp32."""
    case = RECORDINGS / "wrong_precision" / "fires" / "wrong_precision"
    found = json.loads(perfwatch("headroom", str(session_of(case, tmp_path)), "--json").stdout)

    assert [one["lever"] for one in found["levers"]] == ["mixed_precision"]
    assert any("fewer levers" in text for text in found["missing"])


def test_of_a_slow_run_the_cause_comes_before_any_lever(tmp_path: Path) -> None:
    """With what fixing it brings, as a range, and what to do; a trace of a job without a GPU is not asked for."""
    case = RECORDINGS / "contended_lock" / "fires" / "log_handler"
    story = tell(tmp_path, load_case(case), expected_of(case).at)
    found = of_story(story)

    assert found.slow is not None
    assert (found.slow.cause, found.slow.summary) == ("contended_lock", story.verdict.summary)
    assert found.slow.times == pytest.approx((1.62, 4.22), abs=0.3)
    assert not any("perfwatch capture" in text for text in found.missing)
    stream = StringIO()
    Console(file=stream, width=200).print(HeadroomReport(found))
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("SLOW  contended_lock")
    assert any(line.startswith("   fixing it: a step 1.") for line in lines)
    assert any(line.startswith("beside that, no lever") for line in lines)


def test_without_a_verdict_the_headroom_says_what_the_verdict_says(tmp_path: Path) -> None:
    """Not that another command says why."""
    story = tell(tmp_path, load_case(RECORDINGS / "contended_lock" / "fires" / "log_handler"), 0.5)

    assert story.verdict.state == "inconclusive"
    assert of_story(story).missing[0] == f"a verdict: {story.verdict.summary}"


@pytest.mark.parametrize(
    ("free", "says"),
    [(0.0, "no core is free for more workers"), (1.2, "num_workers=1 (1 core is free)"),
     (6.0, "num_workers=6 (6 cores are free)"), (99.0, "num_workers=8 (99 cores are free)")],
)  # fmt: skip
def test_no_more_workers_are_proposed_than_cores_are_free(tmp_path: Path, free: float, says: str) -> None:
    """Of a loop that loads its data itself, as if the machine had had so many idle cores; a trace of it has no GPU to show."""
    case = load_case(RECORDINGS / "serial_loading" / "fires" / "serial_loading")
    records = tuple(
        structs.replace(one, reading=structs.replace(one.reading, idle_seconds=free * one.at))
        if isinstance(one.reading, Host)
        else one
        for one in case.records
    )
    found = of_story(tell_whole(tmp_path, replace(case, records=records)))

    assert next(one.change for one in found.levers if one.lever == "data_loading").startswith(says)
    assert not any("perfwatch capture" in text for text in found.missing)


def test_the_page_of_a_run_that_goes_on_says_what_would_make_it_faster(tmp_path: Path) -> None:
    """And that of a hang says nothing of it."""
    texts = []
    for name in ("wrong_precision/fires/wrong_precision", "stopped/fires/stopped"):
        folder = session_of(RECORDINGS / name, tmp_path / name)
        recording = load(folder)
        texts.append(as_page(tell(folder, recording, recording.end)))

    assert "What would make it faster" in texts[0]
    assert "mixed precision (bf16)" in texts[0]
    assert "What would make it faster" not in texts[1]


@pytest.mark.live
def test_the_figures_are_in_the_json() -> None:
    """A program reads them there, the card's beside the model's."""
    figures = json.loads(replay(*MODEL, "--json").stdout)["efficiency"]

    assert figures["model"]["mfu"]["p50"] == pytest.approx(0.451, abs=0.005)
    assert figures["model"]["tokens_per_second"]["p50"] == pytest.approx(177_000, rel=0.01)
    assert figures["cards"][0]["tensor_tflops"]["p50"] == pytest.approx(463, rel=0.05)  # 446 and the attention


@pytest.mark.live
def test_without_the_model_the_gate_says_that_it_cannot_tell() -> None:
    """A recording may hold what the user said of the model; this one does not."""
    done = replay("--min-mfu", "35")

    assert done.returncode == 50
    assert "MFU is not known" in done.stderr


@pytest.mark.live
def test_half_of_a_model_is_a_mistake_on_the_command_line() -> None:
    """Nothing is guessed."""
    done = replay("--params", "8e9")

    assert done.returncode == 2
    assert "--tokens-per-step" in done.stderr


@pytest.mark.live
def test_what_run_is_told_of_the_model_is_in_the_recording(tmp_path: Path) -> None:
    """So that ``replay SESSION --min-mfu 35`` needs to be told nothing."""
    written = tmp_path / "s" / "session.json"
    waits = ("sh", "-c", 'until test -s "$0"; do sleep 0.05; done', str(written))
    run = ("run", "--quiet", "--session", str(written.parent), *MODEL, "--", *waits)
    done = subprocess.run([sys.executable, "-m", "perfwatch", *run], capture_output=True, text=True, timeout=60)
    conditions = json.loads(written.read_text())["conditions"]

    assert done.returncode == 0
    assert (conditions["params"], conditions["tokens_per_step"]) == (419.4e6, 16384)


@pytest.mark.live
def test_the_gate_is_about_the_run_and_not_about_when_something_was_first_said_of_it() -> None:
    """The last moment before the end, whatever was told before it."""
    gated, plain = replay(*MODEL, "--min-mfu", "35"), replay(*MODEL)

    assert _judged_at(gated.stdout) >= _judged_at(plain.stdout)
    assert _judged_at(gated.stdout) == pytest.approx(_end(gated.stdout), abs=1.0)


def _judged_at(text: str) -> float:
    return float(text.split("judged at ")[1].split(" s of ")[0])


def _end(text: str) -> float:
    return float(text.split(" s of ")[1].split(" s")[0])
