"""Every form of a report: it holds the verdict, and nothing from the job can be more than text in it."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as trace

from perfwatch.recording.recording import load
from perfwatch.report.formats import FORMATS, ending, named
from perfwatch.report.moment import last_living_moment
from perfwatch.report.story import Story, tell
from tests import hostile, simulated_hour
from tests.recorded import RECORDINGS, session_of

pytestmark = pytest.mark.live
READABLE = [one.name for one in FORMATS if one.readable]


def story(folder: Path) -> Story:
    """A session as ``perfwatch report`` reads it."""
    recording = load(folder)
    told = tell(folder, recording, last_living_moment(recording))
    return replace(told, verdict=hostile.said()) if folder.parent.name.startswith("hostile") else told


def rendered(name: str, told: Story) -> bytes:
    """One form of it."""
    chosen = named(name)
    assert chosen is not None
    form = chosen.render(told)
    return form.encode() if isinstance(form, str) else form


def made(name: str, folder: Path) -> str:
    """One form of a session, as text."""
    return rendered(name, story(folder)).decode("latin-1" if name == "perfetto" else "utf-8")


@pytest.fixture(scope="module")
def nasty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A session whose every text is hostile."""
    return hostile.record(tmp_path_factory.mktemp("hostile") / "session")


@pytest.mark.parametrize("name", ["html", *READABLE])
def test_every_form_begins_with_the_verdict(name: str, tmp_path: Path) -> None:
    """State, cause, culprit, chain, evidence and what was ruled out: nothing of it is lost on the way."""
    case = RECORDINGS / "stalled_collective" / "fires" / "stalled_collective-loader-quiet"
    folder = session_of(case, tmp_path / "session")
    text = re.sub(r"\s+", " ", made(name, folder).replace("\\", ""))

    assert "HUNG" in text or '"state":"hung"' in text
    for part in (
        "stalled_collective",
        "worker 30242",
        "4 of 4 samples alike",
        "straggling_rank",
        "perfwatch capture stacks",
    ):
        assert part in text, part


@pytest.mark.parametrize("name", ["json", "perfetto"])
def test_the_lanes_go_on_to_the_end_of_the_recording(name: str, tmp_path: Path) -> None:
    """Whenever it was judged: a run that stays healthy is judged once, and goes on."""
    folder = simulated_hour.write(tmp_path / "session", 120.0)
    recording = load(folder)
    early, late = (rendered(name, tell(folder, recording, at)) for at in (20.0, recording.end))

    assert last_step(name, early) == last_step(name, late) > 50.0


def last_step(name: str, made: bytes) -> float:
    """When the last step that is shown was made."""
    if name == "json":
        (lane,) = (one for one in json.loads(made)["timeline"] if one["name"] == "step time")
        return float(lane["lines"][0]["points"][-1][0])
    whole = trace.Trace()
    whole.ParseFromString(made)
    (track,) = (one.track_descriptor.uuid for one in whole.packet if one.track_descriptor.name == "step time")
    ends = max(one.timestamp for one in whole.packet if one.track_event.track_uuid == track)
    return float(ends / 1e9 - simulated_hour.CREATED)


def test_the_forms_are_chosen_by_name_or_by_the_ending_of_the_file() -> None:
    """The longest ending counts: a speedscope profile is JSON too."""
    assert [one.name for one in FORMATS] == ["html", "md", "text", "json", "perfetto", "speedscope"]
    assert {
        name: getattr(ending(f"a{name}"), "name", None) for name in (".html", ".json", ".speedscope.json", ".xyz")
    } == {
        ".html": "html",
        ".json": "json",
        ".speedscope.json": "speedscope",
        ".xyz": None,
    }


@pytest.mark.live
def test_the_page_holds_no_markup_of_the_job(nasty: Path) -> None:
    """Every ``<`` of a name is escaped, in the text and in the plots' data, and the page forbids itself to load anything."""
    page = made("html", nasty)

    assert "<script>document" not in page
    assert "<img" not in page
    assert "owned&#39;" in page  # it is shown, as text
    assert "49" not in re.findall(r"<h2>[^<]*</h2>", page)
    assert "default-src 'none'" in page
    assert not re.search(r"""(?:src|href)=["']?https?:""", page.partition("<script>")[0])


@pytest.mark.parametrize("name", ["html", "md", "text", "json"])
def test_no_control_character_and_nothing_backwards_gets_through(nasty: Path, name: str) -> None:
    """A terminal that shows the report is not steered, and a name reads in the order of its letters."""
    text = made(name, nasty)
    text = text if name != "html" else text.partition("<script>")[0]

    assert re.findall(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text) == []


@pytest.mark.parametrize("name", ["html", "md", "text"])
def test_names_of_ten_thousand_characters_are_cut(nasty: Path, name: str) -> None:
    """A reader wants the page, not the name."""
    text = made(name, nasty)

    assert max(len(run) for run in re.findall(r"x+", text)) <= 2000


def test_markdown_shows_what_the_job_wrote_and_does_nothing_with_it(nasty: Path) -> None:
    """No link, no markup, no cell and no mention of people comes of a name."""
    text = made("md", nasty)
    outside = re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL)

    assert not re.search(r"(?<!\\)\[click", outside)
    assert not re.search(r"(?<!\\)<[a-zA-Z/]", outside)
    assert "@everyone" not in outside
    assert not re.search(r"\|cell", outside.replace("\\|cell", ""))


def test_the_json_holds_the_verdict_as_every_other_command_gives_it(nasty: Path) -> None:
    """One object on one line; lines that are broken are null."""
    text = made("json", nasty)
    document = json.loads(text)

    assert text.count("\n") == 1
    assert document["schema"] == "perfwatch.report/2"
    assert document["verdict"]["schema"] == "perfwatch.verdict/2"
    assert document["timeline"][0]["name"] == "gpu 0"
    assert document["events"][0]["kind"] == "verdict"


@pytest.mark.live
@pytest.mark.parametrize("name", [one.name for one in FORMATS if one.name != "speedscope"])
def test_a_session_without_a_single_reading_has_a_report(tmp_path: Path, name: str) -> None:
    """It says that nothing suffices; that is an answer."""
    from perfwatch.recording.recording import Recorder
    from tests.sessions import PATIENCE_SECONDS, session

    folder = tmp_path / "empty"
    folder.mkdir(mode=0o700)
    assert Recorder(folder, session()).close(PATIENCE_SECONDS) == ""

    assert made(name, folder)
