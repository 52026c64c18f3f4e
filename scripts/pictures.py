"""Draw the pictures of README.md: a report's page in Chromium, and a screen of perfwatch top.

    .venv/bin/python scripts/pictures.py        writes .github/pictures/report.webp and top.svg

Both show a simulated job of eight GPUs of which a rank hangs. Needs chromium and chromedriver.
"""

import base64
import re
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

from perfwatch.recording.recording import load
from perfwatch.report.page import as_page
from perfwatch.report.story import tell_whole
from perfwatch.top.errands import Errands
from perfwatch.top.follow import Follower
from perfwatch.top.viewing import Viewer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the simulated session belongs to the tests

from tests.simulated_hour import write

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / ".github" / "pictures"
SECONDS = 600.0
COLUMNS, LINES = 110, 30
WIDTH, HEIGHT, QUALITY = 1180, 1480, 45
MOST_BYTES = 150_000  # both together


def top(folder: Path) -> str:
    """The screen as an SVG that loads nothing."""
    console = Console(width=COLUMNS, height=LINES, record=True, file=Path("/dev/null").open("w"), force_terminal=True)
    console.print(Viewer(Follower(folder), console, Errands(None, "")).once(fitted=True), end="")
    drawn = console.export_svg(title="perfwatch top", theme=MONOKAI, unique_id="top")
    return re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)


def page(file: Path) -> bytes:
    """The upper part of the page, as WebP."""
    options = ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    driver = Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    try:
        size = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        driver.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
        driver.get(file.as_uri())
        time.sleep(2.0)  # the plots are drawn
        shot = driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "webp", "quality": QUALITY})
    finally:
        driver.quit()
    return base64.b64decode(shot["data"])


def main() -> int:
    """Draw both; 1 when they are too large."""
    PLACE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="perfwatch-pictures-") as place:
        folder = write(Path(place) / "session", SECONDS)
        file = Path(place) / "report.html"
        story = replace(tell_whole(folder, load(folder)), folder=Path("/var/tmp/perfwatch-1001/20261120-115112-900"))
        file.write_text(as_page(story))
        (PLACE / "top.svg").write_text(top(folder))
        (PLACE / "report.webp").write_bytes(page(file))
    sizes = {one.name: one.stat().st_size for one in sorted(PLACE.iterdir())}
    print(", ".join(f"{name} {size:,} bytes" for name, size in sizes.items()))
    return int(sum(sizes.values()) > MOST_BYTES)


if __name__ == "__main__":
    sys.exit(main())
