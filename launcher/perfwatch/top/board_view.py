"""The screen of ``perfwatch top``: the board, fitted to the terminal's lines and columns, from 40 by 15 on.

Renderables only: the console decides size, colour and encoding, and nothing is printed here.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text

from perfwatch.processes.reinvoke import as_typed_here
from perfwatch.report.glyphs import progress, shares, sparkline
from perfwatch.report.sentences import evidence_of, links_of
from perfwatch.report.terminal import STYLES
from perfwatch.text import clean, duration
from perfwatch.top.board import Board, Card, Row
from perfwatch.verdict import Verdict, confidence_word

LINES_PER_VERDICT_LINE = 12  # of the screen: 24 lines give the verdict two, for it is what the screen is for
NARROW_COLUMNS = 60  # below it the verdict has a third of the lines, and the tables only what tells processes apart
WIDE_COLUMNS = 140  # cards and processes side by side from here on
LEAST_SHARE = 1 / 3  # of the lines: what the evidence leaves to the tables
GOES = {"moving": "green", "busy": "cyan", "still": "bold red", "unknown": "dim"}
KINDS = {"work": "green", "wait": "yellow", "spin": "bold red", "idle": "dim", "unknown": "dim"}
KEYS, NARROW_KEYS = "? help  s stacks  v verdict  c capture  q quit", "? help  q quit"
GIB = 2**30
HIGH = 0.5
LEAST_FRAME, LEAST_WAIT, MOST_WHO = 20, 12, 22
NO_LIMIT = 10_000  # lines of a pipe


@dataclass
class Scroll:
    """How many lines are above the window; ``at_most`` keeps it where something is below."""

    top: int = 0

    def at_most(self, lines: int) -> int:
        """The first line that is shown, of so many that may be above."""
        self.top = max(0, min(self.top, lines))
        return self.top


@dataclass(frozen=True)
class Screen:
    """The whole screen. status: where it comes from and how fresh it is; said: the last line, beside the keys.

    scroll: of the processes. interactive: False for a pipe, which gets everything, no keys and no blank lines.
    """

    board: Board
    status: str
    said: str = ""
    capture: tuple[str, float] | None = None  # of a capture at work: what it does, and its share of the time
    scroll: Scroll = field(default_factory=Scroll)
    interactive: bool = True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Yield exactly as many lines as the screen has; what does not fit is counted."""
        width, height = options.max_width, options.height or console.size.height
        plain = options.ascii_only
        head = list(self._head(console, width, height if self.interactive else NO_LIMIT, plain))
        foot = list(self._foot(width, plain))
        room = max(0, height - len(head) - len(foot)) if self.interactive else NO_LIMIT
        body = self._body(console, width, room, plain)[:room]
        if self.interactive:
            body += [Text()] * (room - len(body))
        for line in (*head, *body, *foot):
            line.truncate(width, overflow="crop" if plain else "ellipsis", pad=self.interactive)
            line.no_wrap = True
            yield line

    def _head(self, console: Console, width: int, height: int, plain: bool) -> Iterator[Text]:
        title = Text(f"{self.board.command}", "bold")
        right = Text(f"{self.board.where}  {self.status}", "dim")
        title.truncate(max(10, width - len(right) - 2), overflow="crop" if plain else "ellipsis")
        yield title.append(" " * max(2, width - len(title) - len(right))).append_text(right)
        most = max(1, height // LINES_PER_VERDICT_LINE) if width >= NARROW_COLUMNS else max(2, height // 3)
        yield from _verdict_lines(self.board.verdict, console, width, most, plain)
        yield _clock_line(self.board, width, plain)

    def _foot(self, width: int, plain: bool) -> Iterator[Text]:
        if self.capture is not None:
            text, share = self.capture
            yield Text("capture ", "cyan").append_text(progress(share, 20, plain, "cyan")).append(f" {clean(text)}")
        for done in self.board.captures:
            yield Text("captured ", "cyan").append(done)
        if self.interactive:
            yield (
                Text()
                .append(KEYS if width >= NARROW_COLUMNS else NARROW_KEYS, "reverse")
                .append(f"  {clean(self.said)}")
            )

    def _body(self, console: Console, width: int, room: int, plain: bool) -> list[Text]:
        """Cards and processes, side by side where the screen is wide; below them the evidence, over the whole width."""
        board = self.board
        why = _why(board.verdict, console, width) if width >= NARROW_COLUMNS else []
        if width < WIDE_COLUMNS:
            cards = _cards(board.cards, width, plain, max(3, room // 2)) if board.cards else []
            host = _host(board, len(board.pressures)) if width >= NARROW_COLUMNS else []
            tree = _tree(board.rows, width, room - len(cards) - len(host), self.scroll)
            return [*cards, *host, *tree, *why]
        left_width = min(76, width * 2 // 5)
        upper = max(room - len(why), int(room * LEAST_SHARE))
        left = [*_cards(board.cards, left_width, plain, upper - 3), Text(), *_host(board, 2)]
        right = _tree(board.rows, width - left_width - 2, upper, self.scroll)
        lines = []
        for number in range(max(len(left), len(right))):
            line = left[number] if number < len(left) else Text()
            line.truncate(left_width, overflow="crop", pad=True)
            lines.append(line.append("  ").append_text(right[number] if number < len(right) else Text()))
        return [*lines, *why]


def _verdict_lines(verdict: Verdict | None, console: Console, width: int, most: int, plain: bool) -> Iterator[Text]:
    if verdict is None:
        yield Text("no verdict yet: sampling", "dim")
        yield Text()
        return
    line = Text().append(verdict.state.upper(), STYLES.get(verdict.state, "bold"))
    line.append(f" {clean(verdict.cause)}" if verdict.cause else "", "bold")
    if verdict.cause:
        line.append(f" (confidence: {confidence_word(verdict.confidence)})")
    line.append(f" {clean(verdict.summary)}")
    wrapped = list(line.wrap(console, width))
    yield from wrapped[: most - 1]
    if wrapped[most - 1 :]:
        yield Text(" ").join(wrapped[most - 1 :])  # what is left of it is cut at the edge
    suspect = verdict.suspect
    if suspect is None:
        silent = "" if verdict.silent_seconds is None else f"silent for {duration(verdict.silent_seconds)}  "
        yield Text(f"{silent}{'' if _is_below(verdict, width) else _first_step(verdict)}", "dim")
        return
    patience = suspect.silent_seconds + max(0.0, suspect.decides_in_seconds)
    line = Text(f"suspected {clean(suspect.state)} ({clean(suspect.cause)}) ", "magenta")
    line.append_text(progress(suspect.silent_seconds / patience if patience else 1.0, 20, plain, "magenta"))
    left = (
        f"decides in {duration(suspect.decides_in_seconds)}" if suspect.decides_in_seconds > 0 else "needs more samples"
    )
    yield line.append(f" silent {duration(suspect.silent_seconds)}, {left}")


def _first_step(verdict: Verdict) -> str:
    return f"next: {clean(as_typed_here(verdict.next[0]))}" if verdict.next else ""


def _is_below(verdict: Verdict, width: int) -> bool:
    """True if the first step is told with the evidence, because the line below the verdict is too short for it."""
    return width >= NARROW_COLUMNS and bool(verdict.evidence) and len(_first_step(verdict)) > width - LEAST_WAIT


def _clock_line(board: Board, width: int, plain: bool) -> Text:
    clock = board.clock
    if clock is None:
        return Text("steps are not counted: perfwatch run counts them, from the start of a job", "dim")
    line = Text("step ").append(f"{clock.count:,}", "bold")
    if clock.ago_seconds is not None:
        line.append(f"  {duration(clock.ago_seconds)} ago")
    if clock.median_seconds is not None:
        line.append(f"  median {_seconds(clock.median_seconds)}  p95 {_seconds(clock.long_seconds)}  ")
    return line.append(sparkline(clock.recent, max(0, min(60, width - len(line))), plain), "cyan")


def _cards(cards: tuple[Card, ...], width: int, plain: bool, most: int) -> list[Text]:
    if not cards:
        return [Text("no GPU was seen", "dim")]
    narrow = width < NARROW_COLUMNS
    bar = max(8, width - 15) if narrow else 16 if width < 100 else 24
    heading = f"{'card':<7}{'does':<8}{'works, spins, waits':<{bar}}"
    heading += "" if narrow else f" {'tens':>5}{'dram':>5}{'W':>5}{'GiB':>5} {'rank':<6}"
    lines = [Text(heading, "dim")]
    shown = cards if len(cards) < most else cards[: max(1, most - 2)]
    for card in shown:
        line = Text(f"{card.name:<7}").append(f"{card.kind:<8}", KINDS.get(card.kind, ""))
        if card.works is None or card.spins is None:
            line.append(f"{'not known':<{bar}}", "dim")
        else:
            line.append_text(shares(card.works, card.spins, bar, plain))
        if narrow:
            lines.append(line)
            continue
        memory = "-" if card.memory_bytes is None else f"{card.memory_bytes / GIB:.0f}"
        power = "-" if card.power_watts is None else f"{card.power_watts:.0f}"
        ranks = ",".join(str(rank) for rank in card.ranks)
        line.append(f" {_percent(card.tensor):>5}{_percent(card.dram):>5}{power:>5}{memory:>5} {ranks:<6}")
        line.append(sparkline(card.recent, max(0, width - len(line)), plain, 1.0), "dim")
        lines.append(line)
    if len(shown) < len(cards):
        lines.append(Text(f"and {len(cards) - len(shown)} more cards", "dim"))
    return lines


def _host(board: Board, on_a_line: int) -> list[Text]:
    lines = []
    for first in range(0, len(board.pressures), max(1, on_a_line)):
        line = Text("host " if first == 0 else "     ", "dim")
        for one in board.pressures[first : first + on_a_line]:
            name = one.name.replace(" pressure", " stall")
            line.append(f"{name} ", "not dim").append(
                f"{one.share:.0%}", "not dim bold" if one.share > HIGH else "not dim"
            )
            line.append("  ")
        lines.append(line)
    return lines


def _why(verdict: Verdict | None, console: Console, width: int) -> list[Text]:
    """The chain of waits, the evidence and what to do next, wrapped: nothing of it is cut."""
    if verdict is None or not verdict.evidence:
        return []
    chain = links_of(verdict.wait_chain)
    found = [Text(), Text("blocked on", "dim")] if chain else []
    found += [Text(clean(f"{'   ' * depth}{text}")) for depth, text in chain]
    found += [Text(), Text("evidence", "dim")]
    found += [Text(clean(f"{who} {one.claim}: {one.observed}")) for one, who in evidence_of(verdict.evidence)]
    steps = verdict.next if verdict.suspect is not None or _is_below(verdict, width) else verdict.next[1:]
    found += [Text(), Text("next", "dim")] if steps else []
    found += [Text(clean(as_typed_here(one)), "bold") for one in steps]
    return [line for one in found for line in (one.wrap(console, width) or [Text()])]


def _tree(rows: tuple[Row, ...], width: int, room: int, scroll: Scroll) -> list[Text]:
    if not rows:
        return [Text("no process of the job is seen", "dim")]
    narrow = width < NARROW_COLUMNS
    who_width, pid_width, rest_width = (12, 8, 0) if narrow else (14, 10, 13)
    who_width = max(who_width, min(MOST_WHO, max(2 * row.depth + len(row.who) for row in rows) + 1))
    fixed = who_width + pid_width + rest_width
    frame_width = max(2, *(len(row.frame) for row in rows))
    wait_width = 0 if narrow else max(8, *(len(row.waits) for row in rows)) + 1
    over = fixed + frame_width + wait_width - width
    if over > 0:  # the frame keeps what it can: it is where the process is
        given = min(over, max(0, wait_width - LEAST_WAIT))
        wait_width -= given
        frame_width = max(LEAST_FRAME, frame_width - (over - given))
    heading = f"{'process':<{who_width}}{'pid':<{pid_width}}"
    heading += "in" if narrow else f"{'st':<3}{'step':>8}  {'in':<{frame_width}} waits in"
    lines = [Text(heading, "dim")]
    many = len(rows) >= room
    most = max(1, room - 2) if many else len(rows)
    first = scroll.at_most(len(rows) - most)
    for row in rows[first : first + most]:
        line = Text().append("  " * row.depth + row.who, GOES.get(row.goes, "dim"))
        line.truncate(who_width, overflow="crop", pad=True)
        line.append(f"{row.pid:<{pid_width}}")
        if not narrow:
            line.append(f"{row.state:<3}{'' if row.step is None else f'{row.step:,}':>8}  ")
        frame = Text(row.frame)
        frame.truncate(frame_width, overflow="crop", pad=True)
        line.append_text(frame)
        lines.append(line if narrow else line.append(f" {row.waits}", "dim"))
    if many:
        above, below = first, len(rows) - first - most
        told = [f"{count} more {where}" for count, where in ((above, "above"), (below, "below")) if count]
        lines.append(Text(", ".join(told), "dim"))
    return lines


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{duration(value, 3)}" if value < 10 else duration(value)
