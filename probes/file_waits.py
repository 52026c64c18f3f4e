"""What a loop that tests for a file waits for, by its text: that the file appears, or that it goes away."""

import ast

from perfwatch.probes.loop_kinds import Loop, dotted
from perfwatch.probes.readings import APPEARS, FILE_TESTS, GOES

_THERE = FILE_TESTS & {"exists", "isfile", "isdir", "is_file", "is_dir", "access"}
_Leaves = ast.Break | ast.Return


def awaits(loop: Loop) -> str:
    """APPEARS or GOES, by the loop's own test and by those under which it is left; "" where neither or both are told.

    ``while not exists(path)``, or ``if exists(path): break`` within it: the file is to appear. A test with an ``or``, or one that
    is made in a function of the program's own, tells nothing.
    """
    told = {_stays(loop.test)} if isinstance(loop, ast.While) else set()
    for node in ast.walk(loop):
        if isinstance(node, ast.If) and any(isinstance(one, _Leaves) for one in node.body):
            told.add({APPEARS: GOES, GOES: APPEARS}.get(_stays(node.test), ""))
    told.discard("")
    return told.pop() if len(told) == 1 else ""


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
