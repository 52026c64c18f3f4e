"""The page in a real browser: it shows the verdict, it can be zoomed, it says nothing on the console and loads nothing."""

from pathlib import Path
from typing import Any

import pytest

from perfwatch.recording.recording import load
from perfwatch.report.page import as_page
from perfwatch.report.story import tell
from tests import hostile, simulated_hour
from tests.report.conftest import BROWSER, DRIVER

SECONDS = 150.0
PATIENCE_SECONDS = 30.0
# The one range that all lanes share, as Bokeh has it in the browser.
SPAN = """
for (const document of Bokeh.documents)
  for (const model of document._all_models.values())
    if (model.type === "Range1d" && model.bounds !== null && model.end - model.start > 2) return [model.start, model.end];
"""
DRAWN = "return Bokeh.documents.length > 0 && document.querySelectorAll('.plot > *').length > 0"
OVERFLOW = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(not (BROWSER and DRIVER), reason="chromium and chromedriver are not installed"),
]


def page(folder: Path, place: Path, **changes: Any) -> Path:
    """Make the page of a session."""
    from dataclasses import replace

    recording = load(folder)
    place.write_text(as_page(replace(tell(folder, recording, recording.end), **changes)))
    return place


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a simulated job of 8 cards."""
    folder = simulated_hour.write(tmp_path_factory.mktemp("page") / "session", SECONDS)
    return page(folder, folder.parent / "report.html")


def opened(browser: Any, file: Path, width: int = 1400, dark: bool = False) -> None:
    """Open a page in a window of this width and wait until its plots are drawn."""
    from selenium.webdriver.support.ui import WebDriverWait

    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get_log("browser")
    browser.get(file.as_uri())
    WebDriverWait(browser, PATIENCE_SECONDS).until(lambda one: one.execute_script(DRAWN))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1400, 420])
def test_the_page_opens_quietly_and_fits(browser: Any, report: Path, width: int, dark: bool) -> None:
    """Nothing on the console, nothing wider than the window, text that stands out from its paper; wide and narrow."""
    opened(browser, report, width, dark)
    paper, ink = (
        browser.find_element("tag name", "body").value_of_css_property(name) for name in ("background-color", "color")
    )

    assert browser.get_log("browser") == []
    assert browser.execute_script(OVERFLOW) == 0
    assert (brightness(paper) < 60, brightness(ink) > 190) == (dark, dark)


def test_the_verdict_is_seen_first(browser: Any, report: Path) -> None:
    """Without scrolling: the state, the sentence, and who is to blame."""
    opened(browser, report)
    state, summary = (browser.find_element("id", name) for name in ("state", "summary"))

    assert state.text == "HUNG"
    assert browser.find_element("id", "cause").text == "stalled_collective"
    assert state.rect["y"] < 200
    assert summary.rect["y"] < 300
    assert browser.find_element("id", "verdict").rect["y"] < 500


def test_a_click_on_the_contents_brings_its_section_into_sight(browser: Any, report: Path) -> None:
    """The page is long."""
    from selenium.webdriver.support.ui import WebDriverWait

    opened(browser, report)
    browser.find_element("link text", "Threads").click()
    top = "return document.getElementById('threads').getBoundingClientRect().top"

    WebDriverWait(browser, PATIENCE_SECONDS).until(lambda one: 0 <= one.execute_script(top) < 900)


def test_a_drag_over_one_lane_zooms_all_of_them(browser: Any, report: Path) -> None:
    """They share one axis of time; a look at a minute of eight cards is one movement of the hand."""
    from selenium.webdriver import ActionChains
    from selenium.webdriver.support.ui import WebDriverWait

    opened(browser, report)
    before = browser.execute_script(SPAN)
    lanes = browser.find_element("id", "timeline")
    browser.execute_script("arguments[0].scrollIntoView({block: 'start', behavior: 'instant'})", lanes)
    left, top = browser.execute_script("const box = arguments[0].getBoundingClientRect(); return [box.x, box.y]", lanes)
    hand = ActionChains(browser).move_by_offset(int(left + 200), int(top + 50))
    hand.click_and_hold().move_by_offset(200, 0).release().perform()

    WebDriverWait(browser, PATIENCE_SECONDS).until(lambda one: one.execute_script(SPAN) != before)
    after = browser.execute_script(SPAN)
    assert 0.1 < (after[1] - after[0]) / (before[1] - before[0]) < 0.4
    assert browser.get_log("browser") == []


def test_hostile_names_are_text_and_nothing_else(browser: Any, tmp_path: Path) -> None:
    """No script of theirs runs, the title stays ours, and the console has nothing to report."""
    folder = hostile.record(tmp_path / "session")
    opened(browser, page(folder, tmp_path / "report.html", verdict=hostile.said()), 420)

    assert browser.title.startswith("hung stuck_worker: session")
    assert "document.title='owned'" in browser.find_element("id", "summary").text
    assert browser.get_log("browser") == []
    assert browser.execute_script(OVERFLOW) == 0


def brightness(colour: str) -> float:
    """Of ``rgb(18, 20, 23)``: 0 to 255."""
    numbers = [float(part) for part in colour.partition("(")[2].rstrip(")").split(",")[:3]]
    return sum(numbers) / 3
