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
SPAN = "const span = document.getElementById('timeline').dataset; return [Number(span.from), Number(span.to)]"
DRAWN = "return document.getElementById('timeline').classList.contains('live')"
OVERFLOW = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
# What a reader would have to push sideways inside of the page.
SCROLLED = """
return [...document.querySelectorAll("body *")]
  .filter(one => getComputedStyle(one).overflowX === "auto" && one.scrollWidth > one.clientWidth).length;
"""
VALUES = "return [...document.querySelectorAll('.lane .value')].map(one => one.textContent)"
TIP = "const tip = document.querySelector('.tip'); return tip.hidden ? '' : tip.textContent"
MOST_BYTES = 300_000

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
@pytest.mark.parametrize("width", [1920, 1280, 390])
def test_the_page_opens_quietly_and_fits(browser: Any, report: Path, width: int, dark: bool) -> None:
    """Nothing on the console, nothing wider than the window, text that stands out from its paper; wide and narrow."""
    opened(browser, report, width, dark)
    paper, ink = (
        browser.find_element("tag name", "body").value_of_css_property(name) for name in ("background-color", "color")
    )

    assert browser.get_log("browser") == []
    assert browser.execute_script(OVERFLOW) == 0
    assert width > 760 or browser.execute_script(SCROLLED) == 0
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
    assert before == [0, pytest.approx(SECONDS, abs=0.5)]
    lanes = browser.find_element("id", "timeline")
    browser.execute_script("arguments[0].scrollIntoView({block: 'start', behavior: 'instant'})", lanes)
    left, top = browser.execute_script("const box = arguments[0].getBoundingClientRect(); return [box.x, box.y]", lanes)
    hand = ActionChains(browser).move_by_offset(int(left + 200), int(top + 50))
    hand.click_and_hold().move_by_offset(200, 0).release().perform()

    WebDriverWait(browser, PATIENCE_SECONDS).until(lambda one: one.execute_script(SPAN) != before)
    after = browser.execute_script(SPAN)
    assert 0.1 < (after[1] - after[0]) / (before[1] - before[0]) < 0.4
    assert browser.get_log("browser") == []


def over(browser: Any, selector: str, share: float) -> Any:
    """Move the pointer over an element, at this share of its width."""
    from selenium.webdriver import ActionChains

    element = browser.find_element("css selector", selector)
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
    width = element.rect["width"]
    ActionChains(browser).move_to_element_with_offset(element, int(width * (share - 0.5)), 0).perform()
    return element


def test_the_pointer_brings_the_values_of_all_lanes_and_what_was_said_then(browser: Any, report: Path) -> None:
    """Before the hang the cards work; in it all but one spin; over the row of verdicts stands the sentence."""
    opened(browser, report)
    assert set(browser.execute_script(VALUES)) == {""}

    over(browser, ".card-lane > svg", 0.3)
    calm = browser.execute_script(VALUES)
    over(browser, ".card-lane > svg", 0.9)
    stuck = browser.execute_script(VALUES)
    assert "11:53:" in browser.execute_script(TIP)

    assert float(calm[0].removesuffix(" %")) > 70.0
    assert calm[1] == "0.0 %"
    assert stuck[:2] == ["0.0 %", "100.0 %"]
    assert any(value.endswith(" ms") for value in calm)
    assert any(value.endswith(" W") for value in calm)
    over(browser, ".events rect", 0.5)

    assert "healthy: the GPU is the bottleneck" in browser.execute_script(TIP)


def test_the_timeline_and_the_flame_graph_work_without_a_mouse(browser: Any, report: Path) -> None:
    """Arrows move the cursor, plus and minus zoom about it, Escape shows all; Enter makes a box as wide as the page."""
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.keys import Keys

    opened(browser, report)
    browser.execute_script("document.getElementById('timeline').focus()")
    keys = ActionChains(browser)
    keys.send_keys(Keys.ARROW_RIGHT, "+", "+").perform()
    zoomed = browser.execute_script(SPAN)
    read = browser.execute_script(TIP)
    ActionChains(browser).send_keys(Keys.ESCAPE).perform()

    assert zoomed[1] - zoomed[0] == pytest.approx(SECONDS / 4, abs=0.1)
    assert "11:52:40" in read
    assert browser.execute_script(SPAN) == [0, pytest.approx(SECONDS, abs=0.5)]

    first, *_ = boxes = browser.find_elements("css selector", "#flame button")
    browser.execute_script("arguments[0].focus()", first)
    ActionChains(browser).send_keys(Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ENTER).perform()
    chosen = browser.switch_to.active_element
    assert chosen.text.startswith("epoch (train.py")
    assert chosen.rect["width"] == pytest.approx(first.rect["width"], abs=20) or chosen.rect["width"] > 1000
    assert len([box for box in boxes if box.get_attribute("tabindex") == "0"]) == 1


def test_a_printed_page_is_light_and_holds_what_was_folded_away(browser: Any, report: Path) -> None:
    """Also from a dark screen; there is nothing to press on paper."""
    opened(browser, report, dark=True)
    closed = "return document.querySelectorAll('details:not([open])').length"
    browser.execute_script("document.querySelector('details').open = false")
    assert browser.execute_script(closed) == 1
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        browser.execute_script("dispatchEvent(new Event('beforeprint'))")
        paper = browser.find_element("tag name", "body").value_of_css_property("background-color")

        assert browser.execute_script(closed) == 0
        assert brightness(paper) == 255
        assert not browser.find_element("tag name", "nav").is_displayed()
        assert not browser.find_element("css selector", ".tools").is_displayed()
        browser.execute_script("dispatchEvent(new Event('afterprint'))")
        assert browser.execute_script(closed) == 1
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "screen"})


def test_the_page_is_small_and_runs_no_script_but_its_own(browser: Any, report: Path, tmp_path: Path) -> None:
    """A script that came in by whatever way is refused by the page's policy, even inline."""
    made = report.read_text()
    other = tmp_path / "other.html"
    other.write_text(made.replace("</body>", "<script>document.title = 'owned'</script></body>"))
    opened(browser, other)

    assert len(made.encode()) <= MOST_BYTES
    assert browser.title.startswith("hung stalled_collective")
    assert "Content Security Policy" in browser.get_log("browser")[0]["message"]


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
