"""Write tests/RESULTS.md from the rows of tests/results.toml.

scripts/results            write the page
scripts/results --check    exit with 1 if the page differs
"""

import argparse
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
FIGURES = ROOT / "tests" / "results.toml"
PAGE = ROOT / "tests" / "RESULTS.md"
WIDTH = 150
Table = dict[str, Any]


def paragraphs(text: str) -> str:
    """The text with its lines broken anew."""
    kept = (" ".join(part.split()) for part in text.strip().split("\n\n"))
    return "\n\n".join(
        textwrap.fill(part, WIDTH, break_long_words=False, break_on_hyphens=False) for part in kept if part
    )


def parts(table: Table) -> Iterator[str]:
    """What stands below the heading of a table, part by part. Raises KeyError and ValueError for what is missing."""
    yield paragraphs(f"`{table['command']}`; {table['machine']}; {table['date']}.")
    yield paragraphs(table.get("text", ""))
    columns, rows = table.get("columns", []), table.get("rows", [])
    if any(len(row) != len(columns) for row in rows):
        raise ValueError(
            f"tests/results.toml: a row of {table.get('title', table['section'])!r} is not as long as its columns"
        )
    lines = [columns, ["---"] * len(columns), *rows] if rows else []
    yield "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    yield paragraphs(table.get("after", ""))


def page() -> str:
    """The whole page."""
    figures = tomllib.loads(FIGURES.read_text())
    tables: list[Table] = figures["table"]
    sections = list(dict.fromkeys(table["section"] for table in tables))
    links = ", ".join(f"[{name}](#{name.lower().replace(' ', '-')})" for name in sections)
    found = [
        "<!-- Written by scripts/results.py from tests/results.toml: edit that file. -->",
        "# Measured results",
        paragraphs(figures["intro"]),
        paragraphs(f"Sections: {links}."),
    ]
    for section in sections:
        found.append(f"## {section}")
        for table in (one for one in tables if one["section"] == section):
            if "title" in table:
                found.append(f"### {table['title']}")
            found += [part for part in parts(table) if part]
    return "\n\n".join(found) + "\n"


def main() -> int:
    """Write or compare; 1 when the page differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    if not parser.parse_args().check:
        PAGE.write_text(page())
    elif PAGE.read_text() != page():
        print("tests/RESULTS.md is not what scripts/results.py writes from tests/results.toml", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
