"""What of a graph does not depend on its input, and is the same whenever it is computed: either part of a cut network
can compute it for itself."""

import copy as copying
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from eow.models.generators import content, forked, generators


def constants(nodes: list[fx.Node], moving: set[fx.Node]) -> set[fx.Node]:
    """All that is made of parameters, buffers and constants alone, but for what is `moving` and made of that."""
    fixed: set[fx.Node] = set()
    for node in nodes:
        if node.op not in ("placeholder", "output") and node not in moving and fixed.issuperset(node.all_input_nodes):
            fixed.add(node)
    return fixed


def moves(run: fx.Interpreter, node: fx.Node) -> bool:
    """Whether a node draws random numbers in training, or keeps statistics: computed in each of two parts it would be
    two things. A copy of it is computed twice, of the arguments that the interpreter has for it."""
    if node.op == "get_attr":
        return False
    module = nn.Module()
    if node.op == "call_module":
        module = copying.deepcopy(run.fetch_attr(str(node.target))).train()

    def computed() -> Any:
        args, kwargs = pytree.tree_map_only(Tensor, torch.clone, run.fetch_args_kwargs_from_env(node))
        if node.op == "call_module":
            return content(module(*args, **kwargs))
        return content(getattr(run, node.op)(node.target, args, kwargs))

    kept = content(list(module.buffers()))
    try:
        with forked(module):
            start = generators([])
            return computed() != computed() or generators([]) != start or content(list(module.buffers())) != kept
    except Exception:  # whatever somebody else's module raises in training
        return True
