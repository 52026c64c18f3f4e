"""What a loop that tests for a file waits for, by its text: that the file appears, or that it goes away."""

import ast
from collections.abc import Iterator

from perfwatch_probes.loop_kinds import Loop, dotted
from perfwatch_probes.readings import APPEARS, FILE_TESTS, GOES

_THERE = FILE_TESTS & {"exists", "isfile", "isdir", "is_file", "is_dir", "access"}
_Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda


def awaits(loop: Loop) -> str:
    """APPEARS or GOES, by the loop's own test and by those under which it is left; "" where neither or both are told.

    ``while not exists(path)``, or ``if exists(path): break`` within it: the file is to appear. A test with an ``or``, or one that
    is made in a function of the program's own, tells nothing.
    """
    told = {_stays(loop.test)} if isinstance(loop, ast.While) else set()
    told |= {{APPEARS: GOES, GOES: APPEARS}.get(_stays(one.test), "") for one in _ifs(loop) if _leaves(one)}
    told.discard("")
    return told.pop() if len(told) == 1 else ""


def tested_names(loop: Loop) -> tuple[str, ...]:
    """The variables that a loop's tests for a file are given as they are: ``path`` of ``exists(path)`` or of ``path.exists()``."""
    found: dict[str, None] = {}
    for node in ast.walk(loop):
        if isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] in FILE_TESTS:
            given = node.args[0] if node.args else node.func.value if isinstance(node.func, ast.Attribute) else node
            if isinstance(given, ast.Name):
                found.setdefault(given.id)
    return tuple(found)


def _ifs(node: ast.AST) -> Iterator[ast.If]:
    """Those of a loop itself: what stands in a loop within it, or in a function that is made there, leaves that one."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If):
            yield child
        if not isinstance(child, Loop | _Scope):
            yield from _ifs(child)


def _leaves(one: ast.If) -> bool:
    return any(isinstance(statement, ast.Break | ast.Return) for statement in one.body)


def _stays(test: ast.expr) -> str:
    """For what a loop waits that goes on while this is true."""
    turned = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
    asked = test.operand if isinstance(test, ast.UnaryOp) and turned else test
    if isinstance(asked, ast.BoolOp) and isinstance(asked.op, ast.And) and not turned:
        told = {_stays(one) for one in asked.values} - {""}
        return told.pop() if len(told) == 1 else ""
    if not isinstance(asked, ast.Call) or dotted(asked.func).rpartition(".")[2] not in _THERE:
        return ""
    return APPEARS if turned else GOES
