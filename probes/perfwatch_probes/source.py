"""The text of a hot or blocked source line, and what it and the loop around it call.

A stack says where a thread is; the line says what it waits for (``queue.get``, ``dist.barrier``, ``time.sleep``) and
the loop whether it will ever leave. ``describe`` is a pure function of the text. The file is the job's, and may be on a mount
that hangs: a guest reads it (``perfwatch_probes.guest``).
"""

import ast
import io
import re
import sys
from collections.abc import Sequence

from perfwatch_probes import guest
from perfwatch_probes.file_waits import awaits, tested_names
from perfwatch_probes.guest import Hosts
from perfwatch_probes.line_results import result_of
from perfwatch_probes.loop_kinds import (
    Loop,
    clocks,
    comes_to_its_end,
    dotted,
    fills,
    hands_out,
    is_endless,
    nears_its_end,
    only_tests,
    stores,
)
from perfwatch_probes.loop_tests import comes_with, tests_before
from perfwatch_probes.parameters import parameters_in
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import FILE_TESTS, GIVING, SourceLine

LARGEST_SOURCE_BYTES = 2 * 2**20
READ_DEADLINE_SECONDS = 0.5
MOST_NAMES = 32  # of one kind, of one function
LONGEST_TEXT = 200
LONGEST_FILE, MOST_FILES = 120, 4
_FILE_NAME = re.compile(r"(?!.*//)[^\s:?&=%{}]*(/[^\s:?&=%{}]+|\w\.[A-Za-z]\w{0,7})")
# What a container raises that has nothing, or no room: ``deque.popleft``, ``dict.popitem``, ``queue.get_nowait``.
_ABSENCES = frozenset("IndexError KeyError LookupError StopIteration Empty Full QueueEmpty QueueFull".split())
_OF_A_FRAME = frozenset("f_back f_builtins f_code f_globals f_lasti f_lineno f_locals f_trace".split())
_TELLING = frozenset("print log debug info warning error exception".split())

_With = ast.With | ast.AsyncWith
_Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class SourceProbe:
    """Reads source lines of a process.

    Args:
        hosts: where files of the job are read and parsed, under a deadline.
    """

    NAME = "source"
    NEEDS = "read access to the job's source files"
    COST = "a few ms per file (parsed in the child), once per line"

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts

    def look(self, pid: int, file: str, line: int) -> list[SourceLine]:
        """One reading for a frame of this process.

        Raises Unavailable when the file is not one (``<string>``), is gone, too large, not Python, or does not answer.
        """
        if not file.startswith("/"):
            raise Unavailable(f"{file} is not a file that can be opened: no source of that frame")
        try:
            return [self._hosts.inside(pid).call(read_line, file, line, deadline_seconds=READ_DEADLINE_SECONDS)]
        except Unavailable:
            late = f"{file} was not read and parsed within {READ_DEADLINE_SECONDS:g} s"
            raise Unavailable(late) from None
        except OSError as error:
            raise Unavailable(f"{file} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise Unavailable(f"{file} cannot be used: {error}") from error


def read_line(file: str, line: int) -> SourceLine:
    """Read and describe; runs in a guest. Raises OSError or ValueError."""
    text = guest.read(file, LARGEST_SOURCE_BYTES + 1)
    if len(text) > LARGEST_SOURCE_BYTES:
        raise ValueError("not a regular file of at most 2 MiB")
    try:
        return describe(text.decode("utf-8", "replace"), file, line)
    except (RecursionError, MemoryError) as error:  # generated code can nest deeper than the parser can go
        raise ValueError(f"too deep to parse: {error}") from error


def describe(text: str, file: str, line: int) -> SourceLine:
    """What a line of a program calls, and the loop around it. Pure.

    Args:
        text: the whole file.
        file: its name, for the reading.
        line: counted from 1.

    Raises ValueError when there is no such line or the text is not Python.
    """
    lines = io.StringIO(text, newline=None).readlines()  # not splitlines: to Python a form feed ends no line
    if not 1 <= line <= len(lines):
        raise ValueError(f"it has no line {line} (changed since it was loaded?)")
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise ValueError(f"it is not Python {sys.version_info[0]}.{sys.version_info[1]}: {error.msg}") from error
    around = _around(tree, line)
    scope = next((one for one in around if isinstance(one, _Scope)), tree)
    here = around[: around.index(scope)] if scope in around else around
    loops = [one for one in here if isinstance(one, Loop)]
    loop, known = loops[0] if loops else None, clocks(tree)
    return SourceLine(
        file=file,
        line=line,
        text=lines[line - 1].strip()[:LONGEST_TEXT],
        calls=_called(scope, line),
        loop_calls=_with_helpers(tree, _called(loop)) if loop else (),
        gives=_giving(tree, scope),
        loop_lines=(loop.lineno, loop.end_lineno or loop.lineno) if loop else None,
        calls_unnamed=loop is not None
        and any(isinstance(one, ast.Call) and not dotted(one.func) for one in ast.walk(loop)),
        loops=tuple("for" if comes_to_its_end(one, known) else "while" for one in loops),
        hands_out=any(map(hands_out, loops)),
        endless=any(map(is_endless, loops)),
        nears_its_end=loop is not None and nears_its_end(loop, line),
        fills=loop is not None and fills(loop),
        only_tests=loop is not None and only_tests(loop),
        stores=loop is not None and stores(loop, scope),
        within=tuple(_entered(item.context_expr) for one in here if isinstance(one, _With) for item in one.items),
        retried_calls=_retried(tree, loop, line) if loop else (),
        asked_calls=_asked(tree, loop, line) if loop else (),
        loop_files=_files(loop) if loop is not None else (),
        tested_names=tested_names(loop) if loop is not None else (),
        awaits=awaits(loop) if loop is not None else "",
        passes_if=tests_before(loop, "backward", line) if loop is not None else (),
        steps_if=tests_before(loop, "step", line) if loop is not None else (),
        steps_each_turn=loop is not None and comes_with(loop, line, "backward"),
        result=result_of(loop, line) if loop is not None else "",
        parameters=_parameters(tree, loops),
        traces=_is_traced_with(scope),
    )


def _around(tree: ast.AST, line: int) -> list[ast.AST]:
    """Every statement that covers a line, innermost first."""
    found: list[ast.AST] = []
    node = tree
    while True:
        covering = (
            child
            for child in ast.iter_child_nodes(node)
            if _first_line(child) <= line <= (getattr(child, "end_lineno", None) or 0)
        )
        below = next(covering, None)
        if below is None:
            return found
        found.insert(0, below)
        node = below


def _entered(context: ast.expr) -> str:
    """What a ``with`` enters: the name that is called, and the names of its arguments, never their values."""
    if not isinstance(context, ast.Call):
        return dotted(context)
    given = ["*"] * len(context.args) + [keyword.arg or "**" for keyword in context.keywords]
    return f"{dotted(context.func)}({', '.join(given)})"


def _first_line(node: ast.AST, default: int = 1 << 30) -> int:
    lines: list[int] = [decorator.lineno for decorator in getattr(node, "decorator_list", [])]
    return min([getattr(node, "lineno", default), *lines])


def _called(node: ast.AST, line: int | None = None) -> tuple[str, ...]:
    """Dotted names that a node calls (on ``line``, where given), in order, each once; nested functions are left out."""
    found: dict[str, None] = {}
    waiting = [node]
    while waiting:
        here = waiting.pop(0)
        touches = line is None or _first_line(here, line) <= line <= (getattr(here, "end_lineno", None) or line)
        if isinstance(here, ast.Call) and touches:
            found.setdefault(dotted(here.func))
        if touches:
            waiting[:0] = [child for child in ast.iter_child_nodes(here) if not isinstance(child, _Scope)]
    return tuple(name for name in found if name)


def _giving(tree: ast.AST, scope: ast.AST) -> tuple[str, ...]:
    """What a function calls that lets others go on; a module's own lines are too many to say something of one of them."""
    calls = _with_helpers(tree, _called(scope)) if scope is not tree else ()
    return tuple(name for name in calls if name.rpartition(".")[2] in GIVING and "." in name)[:MOST_NAMES]


def _files(loop: "Loop") -> tuple[str, ...]:
    """Names of files that a loop tests; parts of an f-string are no whole name, an address may hold a secret."""
    pieces = {id(part) for node in ast.walk(loop) if isinstance(node, ast.JoinedStr) for part in node.values}
    asked = (node for node in ast.walk(loop) if isinstance(node, ast.Call))
    tests = (call for call in asked if dotted(call.func).rpartition(".")[2] in FILE_TESTS)
    texts = (
        node.value
        for call in tests
        for node in ast.walk(call)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in pieces
    )
    named = (text for text in texts if len(text) <= LONGEST_FILE and _FILE_NAME.fullmatch(text))
    return tuple(dict.fromkeys(named))[:MOST_FILES]


def _with_helpers(tree: ast.AST, calls: tuple[str, ...]) -> tuple[str, ...]:
    """These calls, and those that the functions of the same file among them make."""
    called = (name for function in _helpers(tree, calls) for name in _called(function))
    return tuple(dict.fromkeys([*calls, *called]))


def _helpers(tree: ast.AST, calls: tuple[str, ...]) -> list[ast.FunctionDef]:
    """The functions of the same file among these calls."""
    wanted = {name.rpartition(".")[2] for name in calls}
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in wanted]


def _parameters(tree: ast.AST, loops: Sequence[Loop]) -> str:
    """What the innermost loop does with parameters, as a part of the outermost one of its function."""
    if not loops:
        return ""
    inner, whole = ([one, *_helpers(tree, _called(one))] for one in (loops[0], loops[-1]))
    return parameters_in(inner, whole)


def _is_traced_with(scope: ast.AST) -> bool:
    """True for a function of three arguments, but for ``self``, that looks at attributes of a frame in the first."""
    if not isinstance(scope, ast.FunctionDef):
        return False
    given = [one.arg for one in (*scope.args.posonlyargs, *scope.args.args) if one.arg not in ("self", "cls")]
    return len(given) == 3 and any(
        isinstance(node, ast.Attribute) and node.attr in _OF_A_FRAME and dotted(node.value) == given[0]
        for node in ast.walk(scope)
    )


def _retried(tree: ast.AST, loop: "Loop", line: int) -> tuple[str, ...]:
    """What the loop tries before this line: it stands in a handler, or after a ``try`` that leaves the loop on success."""
    for node in ast.walk(loop):
        if not isinstance(node, ast.Try) or not node.handlers:
            continue
        here = [handler for handler in node.handlers if _covers(handler, line)] or node.handlers
        if all(_is_absence(handler) for handler in here):
            continue  # nothing was there yet: it asked
        handled = any(_covers(handler, line) for handler in here)
        succeeded = isinstance((node.orelse or node.body)[-1], ast.Return | ast.Break)
        after = (node.end_lineno or line) < line and succeeded
        if handled or after:
            called = _with_helpers(tree, tuple(name for part in node.body for name in _called(part)))
            return tuple(dict.fromkeys(called))
    return ()


def _is_absence(handler: ast.ExceptHandler) -> bool:
    """True if a handler catches nothing but that a container was empty, or full."""
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    told = {
        one.attr if isinstance(one, ast.Attribute) else one.id
        for one in kinds
        if isinstance(one, ast.Attribute | ast.Name)
    }
    return bool(told) and len(told) == len(kinds) and told <= _ABSENCES


def _asked(tree: ast.AST, loop: "Loop", line: int) -> tuple[str, ...]:
    """What the loop asks before this line: a test of the answer has not left it, and nothing but waiting comes after the test."""
    for at, test in enumerate(loop.body):
        if not isinstance(test, ast.If) or test.orelse or not isinstance(test.body[-1], ast.Return | ast.Break):
            continue
        before, after = loop.body[:at], loop.body[at + 1 :]
        answers = _names(before, ast.Store) & _names([test.test], ast.Load)
        if any(_covers(one, line) for one in after) and answers and not any(_uses(one, answers) for one in after):
            called = [name for part in [*before, test.test] for name in _called(part)]
            return tuple(dict.fromkeys(_with_helpers(tree, tuple(called))))
    return ()


def _names(nodes: Sequence[ast.AST], context: type[ast.expr_context]) -> set[str]:
    inside = (part for node in nodes for part in ast.walk(node))
    return {part.id for part in inside if isinstance(part, ast.Name) and isinstance(part.ctx, context)}


def _uses(statement: ast.stmt, answers: set[str]) -> bool:
    """True if a statement works on one of these names, or does a step of its own; to tell of one in a log is no work."""
    told = isinstance(statement, ast.Expr) and any(name.rpartition(".")[2] in _TELLING for name in _called(statement))
    hands_out = any(isinstance(part, ast.Yield | ast.YieldFrom) for part in ast.walk(statement))
    return hands_out or (not told and bool(_names([statement], ast.Load) & answers))


def _covers(node: ast.stmt | ast.ExceptHandler, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or 0)
