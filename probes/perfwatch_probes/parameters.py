"""What a loop does with the parameters of a model, by its text: it adds noise to them, or only gathers their gradients.

A loop that adds up squared gradients makes backward passes and trains nothing. One that tries parameters out that it has written
itself may train without any gradient, as evolution strategies do.
"""

import ast
from collections.abc import Iterator, Sequence

from perfwatch_probes.loop_kinds import dotted
from perfwatch_probes.readings import GATHERED, PERTURBED

NOISE = frozenset("randn randn_like normal normal_ standard_normal".split())
_GRADIENTS = frozenset({"backward", "grad"})
_LISTED = frozenset({"parameters", "named_parameters"})
_LEAVES = frozenset("zero_ requires_grad_ detach_ retain_grad_".split())  # methods that end in _ and change no value
_WRITERS = frozenset({"vector_to_parameters"})  # of torch.nn.utils
# Parts of names of functions that may update: what they do is not read where they lie in another file.
_MAY_UPDATE = ("step", "update", "apply", "optim")
# Called for their effect, which is no update. What another one does lies in another file: it may be the update.
_HARMLESS = frozenset(
    "backward grad zero_grad append extend add clear print write flush info debug warning error add_scalar train eval manual_seed"
    " synchronize empty_cache collect set_description set_postfix set_postfix_str remove register_hook sleep seek".split()
)
_KEEPS = frozenset({"append", "extend"})
_HANDS_ON = frozenset(
    "send isend put push reduce all_reduce reduce_scatter gather all_gather scatter broadcast".split()
)


def parameters_in(loop: Sequence[ast.AST], whole: Sequence[ast.AST]) -> str:
    """``PERTURBED``, ``GATHERED`` or "", for a loop and the functions of its file that it calls.

    Args:
        loop: the loop, and the functions of its file that it calls.
        whole: the same of the outermost loop around it in its function: where that draws the noise, or makes the update.

    Of gradients that are handed on, or where a call may be an update, it is not known.
    """
    if _is_written(loop):
        return PERTURBED if NOISE & (called := _called(whole)) and not _GRADIENTS & called else ""
    gathers = _gathers_alone(loop) and not _is_written(whole) and _gathers_alone(whole)
    return GATHERED if gathers else ""


def _is_written(bodies: Sequence[ast.AST]) -> bool:
    nodes = _nodes(bodies)
    things = {*_owners(nodes), *(name for node in nodes for name in _listed(node))} - {""}
    return any(_writes(node, things) for node in nodes)


def _gathers_alone(bodies: Sequence[ast.AST]) -> bool:
    """True if gradients are added up or kept, and no call may be an update."""
    nodes, called = _nodes(bodies), _called(bodies)
    may_update = called & _HANDS_ON or any(part in name.lower() for name in called for part in _MAY_UPDATE)
    may_update = may_update or any(_acts_elsewhere(node, bodies) for node in nodes)
    descends = any(
        isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and _has_gradient(node.right) for node in nodes
    )
    return bool(_owners(nodes)) and not (may_update or descends) and any(map(_gathers, nodes))


def _acts_elsewhere(node: ast.AST, bodies: Sequence[ast.AST]) -> bool:
    """True if a statement only calls a function that was not read: it is called for its effect, and its name does not tell that."""
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
        return False
    name = dotted(node.value.func).rpartition(".")[2]
    read = {one.name for one in bodies if isinstance(one, ast.FunctionDef)}
    return name not in _HARMLESS | read and not name.endswith("_")


def _nodes(bodies: Sequence[ast.AST]) -> list[ast.AST]:
    return [node for body in bodies for node in ast.walk(body)]


def _called(bodies: Sequence[ast.AST]) -> set[str]:
    return {dotted(node.func).rpartition(".")[2] for node in _nodes(bodies) if isinstance(node, ast.Call)}


def _owners(nodes: Sequence[ast.AST]) -> set[str]:
    """What gradients are read of."""
    return {dotted(node.value) for node in nodes if isinstance(node, ast.Attribute) and _is_gradient(node)}


def _is_gradient(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "grad" and isinstance(node.ctx, ast.Load)


def _listed(node: ast.AST) -> Iterator[str]:
    """The names that a loop or a comprehension gives to the parameters of a model."""
    if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        yield from _bound(node.target, node.iter)


def _bound(target: ast.AST, over: ast.AST) -> Iterator[str]:
    """The names in a target that stand for parameters; of ``zip`` and ``enumerate`` each part has its own."""
    call = dotted(over.func) if isinstance(over, ast.Call) else ""
    parts = target.elts if isinstance(target, ast.Tuple) else []
    if isinstance(over, ast.Call) and call == "zip" and len(parts) == len(over.args):
        for part, argument in zip(parts, over.args, strict=True):
            yield from _bound(part, argument)
    elif isinstance(over, ast.Call) and call == "enumerate" and len(parts) == 2 and over.args:
        yield from _bound(parts[1], over.args[0])
    elif any(isinstance(one, ast.Call) and dotted(one.func).rpartition(".")[2] in _LISTED for one in ast.walk(over)):
        last = parts[-1] if parts else target
        yield from (dotted(one) for one in ast.walk(last) if isinstance(one, ast.Name))


def _writes(node: ast.AST, things: set[str]) -> bool:
    """True if a node changes a parameter in place."""
    if isinstance(node, ast.Call):
        receiver, _, called = dotted(node.func).rpartition(".")
        in_place = called.endswith("_") and not called.startswith("__") and called not in _LEAVES
        return called in _WRITERS or (in_place and (_owner(receiver) in things or called.startswith("_foreach_")))
    if isinstance(node, ast.AugAssign):
        return _owner(dotted(_whole(node.target))) in things
    if isinstance(node, ast.Assign):
        return any(_sets(target, things) for target in node.targets)
    return False


def _sets(target: ast.expr, things: set[str]) -> bool:
    """True if an assignment sets the values of a parameter (``p.data = x``, ``p[...] = x``), not a name anew."""
    whole = dotted(_whole(target))
    return (whole.endswith(".data") or isinstance(target, ast.Subscript)) and _owner(whole) in things


def _whole(target: ast.expr) -> ast.expr:
    return target.value if isinstance(target, ast.Subscript) else target


def _owner(name: str) -> str:
    return name.removesuffix(".data")


def _gathers(node: ast.AST) -> bool:
    """True if a gradient goes into something else: a sum, a list, an element of a table, a result."""
    if isinstance(node, ast.AugAssign | ast.Assign | ast.Return):
        return node.value is not None and _has_gradient(node.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        keeps = node.func.attr in _KEEPS or (node.func.attr.endswith("_") and node.func.attr not in _LEAVES)
        return keeps and not _has_gradient(node.func) and any(map(_has_gradient, node.args))
    return False


def _has_gradient(node: ast.AST) -> bool:
    return any(map(_is_gradient, ast.walk(node)))
