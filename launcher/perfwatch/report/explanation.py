"""The page of a cause on a terminal: the same words, in lines that fit."""

import textwrap
from importlib.resources import files

from perfwatch.failures import Failure

LIST = "- "


def page(cause: str) -> str:
    """What ``perfwatch explain`` says of a cause: Markdown with a title, a sentence, and sections."""
    return (files("perfwatch.triage") / "explain" / f"{cause}.md").read_text(encoding="utf-8")


def sentence(cause: str) -> str:
    """What a cause means, in one sentence."""
    return page(cause).split("\n\n")[1].replace("\n", " ")


def end_page(end: Failure) -> str:
    """What is said of a sub-cause, in the form of a page."""
    said = {"yes": "may succeed", "no": "makes no sense", "after fixing": "fails again until this is fixed"}[end.retry]
    return (
        f"# {end.name}\n\n## What it means\n\n{_sentence(end.means)}\n\n## What it is mistaken for\n\n{_sentence(end.alike)}"
        f"\n\n## Retry\n\n{end.retry}: the same command, started again, {said}."
        f"\n\n## What to do next\n\n{end.fix}."
    )


def _sentence(text: str) -> str:
    name = "_" in text.split(" ", 1)[0]
    return f"{text if name else text[0].upper() + text[1:]}."


def fitted(text: str, width: int) -> str:
    """Markdown without its title, for a terminal: headings bare, paragraphs below them indented and filled to ``width`` columns."""
    blocks = text.partition("\n\n")[2].strip().split("\n\n")
    shown = [_block(block, width, "  " if n else "") for n, block in enumerate(blocks)]
    return "\n".join(
        f"\n{one}" if n and block.startswith("#") else one
        for n, (one, block) in enumerate(zip(shown, blocks, strict=True))
    )


def _block(block: str, width: int, indent: str) -> str:
    if block.startswith("#"):
        return block.lstrip("# ")
    items: list[str] = []
    for line in block.splitlines():
        if items and not line.startswith(LIST):
            items[-1] += f" {line.strip()}"
        else:
            items.append(line.strip())
    return "\n".join(
        textwrap.fill(
            one,
            width,
            initial_indent=indent,
            subsequent_indent=indent + " " * len(LIST) * one.startswith(LIST),
            break_long_words=False,
        )
        for one in items
    )


def entry(name: str, text: str, column: int, width: int) -> str:
    """One line of a list, ``name`` and what it is; what does not fit goes on below the text."""
    first = f"  {name:<{column}} "
    return textwrap.fill(text, width, initial_indent=first, subsequent_indent=" " * len(first))
