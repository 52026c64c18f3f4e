"""Nothing is half added: rules, drills and commands are in their catalogues, with what proves them."""

from pathlib import Path

import pytest

from perfwatch.actions import ACTION_OF, action_of
from perfwatch.captures.catalogue import CAPTURES
from perfwatch.commands import COMMANDS
from perfwatch.drills import DRILLS
from perfwatch.drills.drill import STRENGTHS, Drill
from perfwatch.gauntlet.needs import NEEDS
from perfwatch.gauntlet.recorded import SUFFIX
from perfwatch.gauntlet.score import PATIENCE_CLASSES
from perfwatch.report.explanation import page
from perfwatch.triage.rule import Rule
from perfwatch.triage.rules import MODULES, RULES
from perfwatch.verdict import ACTIONS, OWNERS, STATES
from tests.recorded import RECORDINGS
from tests.sessions import verdict

HEADINGS = ("What it means", "How it is recognised", "What it is mistaken for", "What to do next")
CAUSES = [rule.cause.name for rule in RULES]


def stems(folder: Path) -> set[str]:
    """Names of the modules in a folder."""
    return {path.stem for path in folder.glob("*.py")} - {"__init__"}


def test_every_rule_module_is_in_the_catalogue(repository: Path) -> None:
    """And each of its rules has a place in the precedence, and a page."""
    folder = repository / "launcher" / "perfwatch" / "triage"
    names = {module.__name__.rpartition(".")[2] for module in MODULES}

    assert names == stems(folder / "rules")
    assert set(CAUSES) == {rule.cause.name for module in MODULES for rule in module.RULES}
    assert set(CAUSES) == {page.stem for page in (folder / "explain").glob("*.md")}


@pytest.mark.parametrize("rule", RULES, ids=CAUSES)
def test_every_rule_explains_itself(rule: Rule) -> None:
    """``perfwatch explain`` prints its page, which has the four headings in order."""
    text = page(rule.cause.name)
    places = [text.find(heading) for heading in HEADINGS]

    assert -1 not in places, f"missing: {HEADINGS[places.index(-1)]}"
    assert places == sorted(places)


@pytest.mark.parametrize("rule", RULES, ids=CAUSES)
def test_every_cause_belongs_to_a_known_state_and_owner(rule: Rule) -> None:
    """States and owners are a closed list: other programs read them."""
    cause = rule.cause

    assert cause.state in STATES
    assert cause.owner in OWNERS


def test_every_cause_has_an_action_or_none_on_purpose() -> None:
    """``actions.ACTION_OF`` has a row for each cause; busy waits, and what is well needs nothing."""
    states = {rule.cause.name: rule.cause.state for rule in RULES}

    assert ACTION_OF.keys() == states.keys()
    assert set(ACTION_OF.values()) == {*ACTIONS, None}
    assert {ACTION_OF[name] for name, state in states.items() if state == "busy"} == {"wait"}
    assert {ACTION_OF[name] for name, state in states.items() if state == "healthy"} == {"none"}
    assert "restart" not in {ACTION_OF[name] for name, state in states.items() if state == "slow"}


@pytest.mark.parametrize(
    ("changes", "action"),
    [
        ({"cause": "stuck_worker"}, "restart"),
        ({"cause": "stuck_worker", "confidence": 0.65}, None),
        ({"state": "inconclusive", "cause": None}, None),
        ({"state": "busy", "cause": "compiling", "confidence": 0.65}, "wait"),
        ({"state": "gone", "cause": "gpu_fault", "retry": "yes"}, "replace_node"),
        ({"state": "gone", "cause": "killed", "retry": "yes"}, "restart"),
        ({"state": "gone", "cause": "killed", "sub_cause": "preempted", "retry": "yes"}, "restart"),
        ({"state": "gone", "cause": "killed", "sub_cause": "terminated", "retry": "yes"}, None),
        ({"state": "gone", "cause": "killed", "sub_cause": "interrupted", "retry": "no"}, None),
        ({"state": "gone", "cause": "crashed", "retry": "after fixing"}, "fix_code"),
        ({"state": "gone", "cause": "crashed"}, None),
        ({"state": "gone", "cause": "finished"}, "none"),
    ],
)
def test_an_action_is_said_only_where_it_is_sure(changes: dict[str, object], action: str | None) -> None:
    """A machine does not check a verdict of medium confidence first."""
    assert action_of(verdict(**changes)) == action


def test_no_cause_is_there_twice() -> None:
    """One word per thing."""
    assert len(set(CAUSES)) == len(CAUSES)


# A card's clocks, link and driver are never touched to see what happens: scripts/simulate_case.py makes the cases of these
# from recorded ones, with the one witness changed.
SIMULATED = {"gpu_fault", "driver_unresponsive", "throttled_gpu", "degraded_link"}


@pytest.mark.parametrize("cause", [cause for cause in CAUSES if cause not in SIMULATED])
def test_every_cause_can_be_made_for_real(cause: str) -> None:
    """A rule without a drill has never met its fault; write launcher/perfwatch/drills/programs/CAUSE.py and list it."""
    assert any(cause in drill.causes for drill in DRILLS)


@pytest.mark.parametrize("cause", sorted(SIMULATED))
def test_what_nobody_may_cause_is_simulated(cause: str) -> None:
    """A drill that makes it would be a line too many there."""
    assert cause in CAUSES
    assert not any(cause in drill.causes for drill in DRILLS)


@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("kind", ["fires", "lookalike"])
def test_every_cause_has_recorded_cases(cause: str, kind: str) -> None:
    """Make one with scripts/record_case.py."""
    folder = RECORDINGS / cause / kind

    assert list(folder.glob(f"*{SUFFIX}")) != []


def test_every_program_of_the_drills_is_listed(repository: Path) -> None:
    """A program that no drill starts is never run; add it to a catalogue."""
    folder = repository / "launcher" / "perfwatch" / "drills" / "programs"
    files = stems(folder)
    texts = [path.read_text() for path in folder.glob("*.py")]
    shared = {name for name in files if any(f"import {name}" in text for text in texts)}
    programs = {f"{name}.py" for name in files - shared}

    assert programs == {drill.program for drill in DRILLS}


@pytest.mark.parametrize("drill", DRILLS, ids=lambda drill: str(drill.name))
def test_every_drill_makes_sense(drill: Drill) -> None:
    """State, strengths and needs are known words, and a fault names the cause that it must be called."""
    assert drill.state in STATES
    assert set(drill.strengths) <= set(STRENGTHS)
    assert set(drill.ends) <= set(drill.strengths or ("loud",))
    assert set(drill.ends.values()) <= set(PATIENCE_CLASSES)
    assert set(drill.needs) <= set(NEEDS)
    assert drill.causes or drill.lookalike_of


def test_no_drill_name_is_there_twice() -> None:
    """A name on the command line means one program."""
    names = [drill.name for drill in DRILLS]

    assert len(set(names)) == len(names)


ACCUSATIONS = [rule.cause.name for rule in RULES if rule.cause.state in ("hung", "slow")]


@pytest.mark.parametrize("cause", [cause for cause in ACCUSATIONS if cause not in SIMULATED])
def test_every_accusation_has_a_lookalike_program(cause: str) -> None:
    """What could be mistaken for it is tried too."""
    assert any(drill.lookalike_of == cause for drill in DRILLS)


@pytest.mark.parametrize("name", [capture.NAME for capture in CAPTURES])
def test_every_capture_is_in_its_readme(repository: Path, name: str) -> None:
    """With what it brings and what it disturbs; add a row to the table of captures."""
    text = (repository / "launcher" / "perfwatch" / "captures" / "README.md").read_text()

    assert f"| `perfwatch capture {name}" in text


def test_every_command_is_in_the_catalogue(repository: Path) -> None:
    """``--help`` lists COMMANDS; a file that is not in it cannot be typed."""
    assert set(COMMANDS) == stems(repository / "launcher" / "perfwatch" / "commands")


def test_row_of_a_cause_that_cannot_be_read_is_refused() -> None:
    """What was seen needs a figure."""
    with pytest.raises(ValueError, match="saw stack"):
        RULES[0].cause.line("said\n- saw stack: no figure")
