"""Linear layers that read the same input, computed as one product in compiled windows.

A Llama layer has separate weights for queries, keys and values, and for its gate: five products of which each fills a
GPU less than one product with all of their rows. Models, saved files and optimizers keep their separate weights: only
the graph that torch's compiler gets is rewritten, before its gradients are derived. Each window copies the weights of a
layer into one matrix: 140 MB for all layers of SmolLM2, of which one layer's activations of 64 rows have more.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

LINEAR: tuple[Callable[..., Any], ...] = (torch.nn.functional.linear, torch._C._nn.linear)
VIEWS = ("view", "reshape")
SAME_MEMORY = (
    *("transpose", "permute", "movedim", "swapaxes", "t", "unflatten", "flatten", "split", "chunk", "unbind", "narrow"),
    *("getitem", "getattr", "select", "unsqueeze", "squeeze", "expand", "view_as", "contiguous", "detach", "to"),
)
"""Operations whose result may share memory with their input."""
CHANGES = ("setitem", "iadd", "isub", "imul", "itruediv", "ifloordiv", "ipow", "as_strided")
MODES = ("_enter_autocast", "_exit_autocast", "_set_grad_enabled")
"""Nodes that change how later ones are computed."""


class _Linear(NamedTuple):
    node: fx.Node
    source: fx.Node
    weight: fx.Node
    bias: fx.Node | None


def join_products(graph: fx.Graph) -> int:
    """Replace linear layers of the same input by one, and split its outputs; returns how many products are saved.

    Layers are joined if all or none have a bias, their weights have the same type, all or none are trained, and nothing
    that they read or give is changed in place.
    """
    place = {node: number for number, node in enumerate(graph.nodes)}
    groups: dict[Any, list[_Linear]] = {}
    mode = 0
    for node in graph.nodes:
        mode += getattr(node.target, "__name__", "") in MODES
        found = _linear_of(node)
        if found is None:
            continue
        weight = _value(found.weight)
        kind = (mode, found.source, weight.dtype, weight.device, weight.requires_grad, found.bias is None)
        group = groups.setdefault(kind, [])
        needed = [one for one in (found.weight, found.bias) if one is not None]
        if not group or all(place[one] < place[group[0].node] for one in needed):
            group.append(found)
    joined = [group for group in groups.values() if len(group) > 1 and not _is_changed(group)]
    for group in joined:
        _join(graph, group)
    return sum(len(group) - 1 for group in joined)


def _linear_of(node: fx.Node) -> _Linear | None:
    if node.op != "call_function" or node.target not in LINEAR:
        return None
    names = ("input", "weight", "bias")
    given = dict(zip(names, node.args, strict=False)) | node.kwargs
    source, weight, bias = (given.get(name) for name in names)
    if not (isinstance(source, fx.Node) and isinstance(weight, fx.Node) and isinstance(bias, fx.Node | None)):
        return None
    matrix = _value(weight)
    return _Linear(node, source, weight, bias) if isinstance(matrix, Tensor) and matrix.ndim == 2 else None


def _value(node: fx.Node) -> Any:
    return node.meta.get("example_value")


def _is_changed(group: Sequence[_Linear]) -> bool:
    """Whether an operation may change the input, a weight or an output in place, or counts on an output's layout."""
    watched = [
        group[0].source,
        *(node for one in group for node in (one.node, one.weight, one.bias) if node is not None),
    ]
    seen: set[fx.Node] = set()
    while watched:
        node = watched.pop()
        for user in node.users:
            name = getattr(user.target, "__name__", str(user.target))
            if name in CHANGES or (name.endswith("_") and not name.endswith("__")) or user.kwargs.get("inplace"):
                return True
            if user not in seen and (name in SAME_MEMORY or name in VIEWS):
                seen.add(user)
                watched.append(user)
    return False


def _join(graph: fx.Graph, group: Sequence[_Linear]) -> None:
    sizes = [len(_value(one.weight)) for one in group]
    biases = [one.bias for one in group if one.bias is not None]
    with graph.inserting_before(group[0].node):
        weight = graph.call_function(torch.cat, ([one.weight for one in group],))
        bias = graph.call_function(torch.cat, (biases,)) if biases else None
        whole = graph.call_function(torch.nn.functional.linear, (group[0].source, weight, bias))
        parts = graph.call_function(torch.split, (whole, sizes), {"dim": -1})
        outputs = [graph.call_function(operator.getitem, (parts, number)) for number in range(len(group))]
    for one, output in zip(group, outputs, strict=True):
        for user in one.node.users:
            if user.op == "call_method" and user.target in VIEWS:
                user.target = "reshape"  # parts of rows cannot be viewed in every shape
        output.meta.update(one.node.meta)
        one.node.replace_all_uses_with(output)
        graph.erase_node(one.node)
