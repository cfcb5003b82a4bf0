"""A tail that is a chain of layers, as nn.Sequential with every layer under its own path: Langevin chains run fastest
through that."""

from collections import OrderedDict
from math import prod

import torch
from torch import fx, nn
from torch.nn import functional as F

from eow.models.tracing import Traced


def plain_tail(
    traced: Traced, cut: fx.Node, nodes: list[fx.Node], shapes: dict[fx.Node, tuple[int, ...]], fixed: set[fx.Node]
) -> nn.Module | None:
    """The tail where it is a chain of layers, else None. `shapes` are those of tensors, `fixed` what is constant."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    previous = cut
    for node in nodes:
        if node.target is torch._assert:
            return None  # what the forward asks is asked at every call
        if node not in shapes:
            continue  # sizes: a flatten needs none of them
        if node in fixed:
            return None
        if node.op == "call_module":
            # More than one argument, and the module is not a layer of a chain.
            found = [traced.parts[str(node.target)]] if node.args == (previous,) and not node.kwargs else []
        else:
            found = layers_for(node, previous, shapes)
        if not found:
            return None
        for number, layer in enumerate(found):
            path = str(node.target) if node.op == "call_module" else f"{node.name}_{number}"
            if path in layers:
                return None
            layers[path] = layer
        previous = node
    return nested(list(layers.items())) if previous is list(traced.graph.nodes)[-1].args[0] else None


def layers_for(node: fx.Node, previous: fx.Node, shapes: dict[fx.Node, tuple[int, ...]]) -> list[nn.Module]:
    """A function as layers that compute the same, where it is one of the few that end most networks."""
    if node.args[:1] != (previous,) or previous not in shapes:
        return []
    before, after = shapes[previous], shapes[node]
    if node.target in (F.relu, torch.relu, "relu"):
        return [nn.ReLU()]
    if node.target in (torch.flatten, "flatten", "reshape", torch.reshape) and after == (before[0], prod(before[1:])):
        return [nn.Flatten()]
    if node.target is F.adaptive_avg_pool2d and after == (*before[:2], 1, 1):
        return [nn.AdaptiveAvgPool2d(1)]
    if node.target in (torch.mean, "mean") and len(before) == 4 and after == before[:2]:
        over = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
        if isinstance(over, list | tuple) and {axis % 4 for axis in over if isinstance(axis, int)} == {2, 3}:
            return [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return []


def nested(layers: list[tuple[str, nn.Module]]) -> nn.Sequential | None:
    """Sequentials in Sequentials, so that every layer keeps its path: None where the order does not allow it."""
    groups: OrderedDict[str, list[tuple[str, nn.Module]]] = OrderedDict()
    previous = None
    for path, layer in layers:
        name, _, rest = path.partition(".")
        if (name != previous and name in groups) or hasattr(nn.Sequential, name):
            return None
        groups.setdefault(name, []).append((rest, layer))
        previous = name
    children: OrderedDict[str, nn.Module] = OrderedDict()
    for name, members in groups.items():
        if members[0][0]:
            inner = nested(members)
            if inner is None:
                return None
            children[name] = inner
        else:
            children[name] = members[0][1]
    return nn.Sequential(children)
