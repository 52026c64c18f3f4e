"""A rule's documentation on a terminal: the same words, in lines that fit."""

import inspect
import textwrap


def fitted(documentation: str, width: int) -> str:
    """Paragraphs filled to ``width`` columns; headings, indentation and list items (``- ``) stay. Literals have single quotes."""
    lines: list[str] = []
    for line in inspect.cleandoc(documentation).replace("``", "`").splitlines():
        follows = bool(lines) and bool(lines[-1]) and _indent(lines[-1]) == _indent(line)
        if line and follows and not line.lstrip().startswith("- "):
            lines[-1] += " " + line.strip()
        else:
            lines.append(line)
    return "\n".join(_filled(line, width) for line in lines)


def entry(name: str, text: str, column: int, width: int) -> str:
    """One line of a list, ``name`` and what it is; what does not fit goes on below the text."""
    first = f"  {name:<{column}} "
    return textwrap.fill(text, width, initial_indent=first, subsequent_indent=" " * len(first))


def _filled(line: str, width: int) -> str:
    indent = _indent(line)
    hanging = indent + ("  " if line.lstrip().startswith("- ") else "")
    return textwrap.fill(line.strip(), width, initial_indent=indent, subsequent_indent=hanging, break_long_words=False)


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]
