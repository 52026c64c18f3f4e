"""The forms of a report. ``FORMATS`` is in the order of ``--help``; each module makes one string or bytes of a story."""

from collections.abc import Callable
from dataclasses import dataclass

from perfwatch.errors import UsageError, install_command
from perfwatch.report.story import Story

PERFETTO = "perfetto>=0.11"


@dataclass(frozen=True)
class Format:
    """One form: its name on the command line, how its files end, whether a terminal can show it, and what makes it."""

    name: str
    suffix: str
    readable: bool
    what: str
    render: Callable[[Story], str | bytes]


def _html(story: Story) -> str:
    from perfwatch.report.page import as_page

    return as_page(story)


def _markdown(story: Story) -> str:
    from perfwatch.report.markdown import as_markdown

    return as_markdown(story)


def _text(story: Story) -> str:
    from perfwatch.report.prose import as_text

    return as_text(story)


def _json(story: Story) -> str:
    from perfwatch.report.document import as_document

    return as_document(story)


def _perfetto(story: Story) -> bytes:
    try:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2  # noqa: F401
    except ImportError:
        raise UsageError(
            "a Perfetto trace needs the perfetto package, which is not installed", install_command(PERFETTO)
        ) from None
    from perfwatch.report.perfetto import as_trace

    return as_trace(story)


def _speedscope(story: Story) -> str:
    from perfwatch.report.speedscope import as_speedscope

    return as_speedscope(story)


FORMATS: tuple[Format, ...] = (
    Format("html", ".html", False, "one page that opens in any browser, without a network", _html),
    Format("md", ".md", True, "to paste into a chat or an issue", _markdown),
    Format("text", ".txt", True, "for a terminal or a mail", _text),
    Format("json", ".json", True, "for programs: perfwatch.report/2", _json),
    Format("perfetto", ".pftrace", False, "everything on one timeline, for ui.perfetto.dev", _perfetto),
    Format(
        "speedscope", ".speedscope.json", False, "the lines that the GPU waits for, for speedscope.app", _speedscope
    ),
)


def named(name: str) -> Format | None:
    """The form of this name."""
    return next((one for one in FORMATS if one.name == name), None)


def ending(file_name: str) -> Format | None:
    """The form whose files end like this one; the longest ending counts."""
    found = [one for one in FORMATS if file_name.endswith(one.suffix)]
    return max(found, key=lambda one: len(one.suffix), default=None)
