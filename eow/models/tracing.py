"""Somebody else's network, read as a torch.fx graph: where it can be cut, and its two parts at a cut.

A cut is a place where one tensor carries everything: nothing that was computed before it is needed after it. Modules
without children are taken as they are, and so is one that cannot be traced or that computes something else in training
than in evaluation: the graph is read again with that module closed. Only the outermost `forward` has to be traceable.
"""

import operator
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import zip_longest
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from eow.errors import EowError
from eow.models.split import INPUT

PENULTIMATE = "penultimate"
ROOT = "model"  # where the wrapper holds the network
PAIR = "or pass the two parts yourself: eow.upgrade((encoder, tail)), tail(encoder(x)) being the logits"

# Written as functions they bake the mode in which they were traced into the graph; as modules they follow it.
DROPOUTS: dict[Any, type[nn.Module]] = {
    F.dropout: nn.Dropout,
    F.dropout1d: nn.Dropout1d,
    F.dropout2d: nn.Dropout2d,
    F.dropout3d: nn.Dropout3d,
    F.alpha_dropout: nn.AlphaDropout,
    F.feature_alpha_dropout: nn.FeatureAlphaDropout,
}
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Traced(NamedTuple):
    graph: fx.Graph
    parts: dict[str, Any]  # what the graph's targets name: modules, parameters, constants
    outputs: dict[str, list[fx.Node]]  # by a module's path, what its calls returned


class Whole(nn.Module):
    """A network as a function of one tensor: its other arguments keep their defaults, and are not traced."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Any:
        return self.model(x)


class ModuleTracer(fx.Tracer):
    """torch.fx's tracer, which also remembers what every module returned and inside which module a node was made."""

    def __init__(self, closed: set[str]) -> None:
        super().__init__(param_shapes_constant=True)
        self.closed = closed
        self.within = [ROOT]
        self.culprit: str | None = None  # the innermost module that could not be traced
        self.returned: dict[str, list[fx.Node]] = {}

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return module_qualified_name in self.closed or self.childless(m, module_qualified_name)

    def childless(self, module: nn.Module, path: str) -> bool:
        return next(module.children(), None) is None or super().is_leaf_module(module, path)

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        path = self.path_of_module(m)
        leaf = self.is_leaf_module(m, path)
        if not leaf:
            self.within.append(path)
        try:
            returned = super().call_module(m, forward, args, kwargs)
        except Exception:
            if self.culprit is None and not leaf:
                self.culprit = path
            raise
        if not leaf:
            self.within.pop()
        if isinstance(returned, fx.Proxy):
            self.returned.setdefault(path, []).append(returned.node)
        return returned

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        node.meta["within"] = self.within[-1]
        return node


@contextmanager
def in_mode(module: nn.Module, training: bool) -> Iterator[None]:
    modes = [(submodule, submodule.training) for submodule in module.modules()]
    try:
        for submodule, _ in modes:
            submodule.training = training
        yield
    finally:
        for submodule, before in modes:
            submodule.training = before


def trace(model: nn.Module) -> Traced:
    """The network's graph, the same in training and in evaluation."""
    refuse_hooks(model)
    closed: set[str] = set()
    while True:
        readings = []
        for training in (False, True):
            tracer, root = ModuleTracer(closed), Whole(model)
            try:
                with in_mode(model, training):
                    readings.append((tracer, tracer.trace(root), root))
            except Exception as error:
                culprit = tracer.culprit
                if culprit is None or culprit == ROOT or culprit in closed:
                    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
                    raise EowError(
                        f"torch.fx cannot trace {type(model).__name__}.forward ({reason}): write it without decisions "
                        f"on the input's values or shape, {PAIR}"
                    ) from error
                closed.add(culprit)
                break
        if len(readings) < 2:
            continue
        (tracer, graph, root), (_, trained, _) = readings
        culprit = difference(graph, trained)
        if culprit is None:
            return finished(tracer, graph, trained, root)
        if culprit == ROOT:
            raise EowError(
                f"{type(model).__name__}.forward computes something else in training than in evaluation: put what "
                f"differs into a module of its own, such as nn.Dropout, {PAIR}"
            )
        closed.add(culprit)


def refuse_hooks(model: nn.Module) -> None:
    """A module that the tracer goes through is not called any more, so its hooks would be lost."""
    tracer = ModuleTracer(set())
    for path, module in model.named_modules():
        if not tracer.childless(module, path) and any(getattr(module, kind) for kind in HOOKS):
            raise EowError(
                f"{path or 'the model'} has a hook, which would be lost when the model is cut: remove it first and "
                "register it again on the upgraded model"
            )


def difference(graph: fx.Graph, trained: fx.Graph) -> str | None:
    """The module in which two graphs begin to differ, but for what dropout functions are told of the mode."""
    for one, other in zip_longest(graph.nodes, trained.nodes):
        if one is None or other is None or signature(one) != signature(other):
            return str((one or other).meta["within"])
    return None


def signature(node: fx.Node) -> tuple[Any, ...]:
    kwargs = {key: value for key, value in node.kwargs.items() if node.target not in DROPOUTS or key != "training"}
    return node.op, node.target, str(node.args), str(kwargs)


def finished(tracer: ModuleTracer, graph: fx.Graph, trained: fx.Graph, root: Whole) -> Traced:
    """Targets under the names the user knows, dropout as modules, and `view` as `reshape`, which is the same where
    `view` works and also takes the strided tensors that a GPU is given."""
    parts: dict[str, Any] = {}
    for node, other in zip(graph.nodes, list(trained.nodes)):
        if node.op in ("call_module", "get_attr"):
            value = operator.attrgetter(str(node.target))(root)
            node.target = str(node.target).removeprefix(f"{ROOT}.")
            parts[node.target] = value
        elif node.target in DROPOUTS and node.kwargs != other.kwargs:
            options = node.kwargs
            parts[node.name] = DROPOUTS[node.target](options.get("p", 0.5), bool(options.get("inplace", False)))
            node.op, node.target, node.kwargs, node.args = "call_module", node.name, {}, node.args[:1]
        elif node.op == "call_method" and node.target == "view" and torch.dtype not in map(type, node.args):
            node.target = "reshape"
    outputs = {path.removeprefix(f"{ROOT}."): nodes for path, nodes in tracer.returned.items() if path != ROOT}
    return Traced(graph, parts, outputs)


class Seen(NamedTuple):
    """What a node computed for a batch of `count`."""

    count: int
    shapes: dict[fx.Node, tuple[int, ...]]  # of floating-point tensors
    numbers: dict[fx.Node, int]


class Recorder(fx.Interpreter):
    """Runs the graph and keeps shapes and whole numbers; of tensors nothing stays."""

    def __init__(self, module: fx.GraphModule, count: int) -> None:
        super().__init__(module)
        self.seen = Seen(count, {}, {})

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if isinstance(value, Tensor) and value.is_floating_point() and n.op != "get_attr":
            self.seen.shapes[n] = tuple(value.shape)
        elif isinstance(value, int):
            self.seen.numbers[n] = value
        return value


def possible_cuts(traced: Traced, head: fx.Node, seen: tuple[Seen, Seen]) -> dict[str, fx.Node]:
    """Every cut by each of its names, in the order of the computation: `input`, modules by their paths, functions in the
    outermost `forward` by the graph's names, and `penultimate`, the head's input without the dropout before it."""
    nodes = list(traced.graph.nodes)
    place = {node: index for index, node in enumerate(nodes)}
    fixed, batch_size = constants(nodes), batch_sizes(seen)
    last = {}
    for node in nodes:
        uses = [place[user] for user in node.users if user not in batch_size]
        last[node] = max(uses, default=-1) if node not in fixed and node not in batch_size else -1
    by_node: dict[fx.Node, list[str]] = {}
    for path, returned in traced.outputs.items():
        if len(returned) == 1:  # a module that is called twice is no place
            by_node.setdefault(returned[0], []).append(path)
    before = head.args[0]
    while isinstance(before, fx.Node) and isinstance(traced.parts.get(str(before.target)), nn.Dropout | nn.Identity):
        before = before.args[0]
    cuts: dict[str, fx.Node] = {}
    for index, node in enumerate(nodes[: place[head]]):
        crossing = [other for other in nodes[: index + 1] if last[other] > index]
        if crossing != [node] or not batched(node, seen):
            continue
        own = [node.name] if node.meta["within"] == ROOT else []  # functions inside modules have no name anybody knows
        names = [INPUT] if node.op == "placeholder" else sorted(by_node.get(node, own), key=depth)
        for name in names:
            cuts.setdefault(name, node)
        if node is before:
            cuts.setdefault(PENULTIMATE, node)
    return cuts


def depth(path: str) -> tuple[int, str]:
    return path.count("."), path


def constants(nodes: list[fx.Node]) -> set[fx.Node]:
    """What does not depend on the input: either part can compute it for itself."""
    fixed: set[fx.Node] = set()
    for node in nodes:
        if node.op not in ("placeholder", "output") and fixed.issuperset(node.all_input_nodes):
            fixed.add(node)
    return fixed


def batch_sizes(seen: tuple[Seen, Seen]) -> set[fx.Node]:
    """Numbers that are the batch's size, whichever it is: the tail can ask its own input for them."""
    first, second = seen
    return {n for n, value in first.numbers.items() if value == first.count and second.numbers[n] == second.count}


def batched(node: fx.Node, seen: tuple[Seen, Seen]) -> bool:
    """Whether this is a tensor of one row a sample."""
    first, second = (each.shapes.get(node) for each in seen)
    if not first or not second:
        return False
    return (first[0], second[0]) == (seen[0].count, seen[1].count) and first[1:] == second[1:]


def split(traced: Traced, cut: fx.Node, seen: tuple[Seen, Seen]) -> tuple[nn.Module, nn.Module]:
    """The modules before and after the cut, sharing what both use."""
    nodes = list(traced.graph.nodes)
    position = nodes.index(cut)
    encoder: nn.Module = nn.Identity()
    if cut.op != "placeholder":
        encoder = part(traced, nodes[0], nodes[1 : position + 1], cut, set())
    fixed, output = constants(nodes), nodes[-1].args[0]
    assert isinstance(output, fx.Node)
    rest = [node for node in nodes[:position] if node in fixed] + nodes[position + 1 : -1]
    tail = plain_tail(traced, cut, nodes[position + 1 : -1], seen)
    return encoder, tail or part(traced, cut, rest, output, batch_sizes(seen))


def part(
    traced: Traced, entry: fx.Node, nodes: list[fx.Node], result: fx.Node, batch_size: set[fx.Node]
) -> fx.GraphModule:
    """The module that computes `result` by `nodes` from `entry`."""
    graph = fx.Graph()
    copies = {entry: graph.placeholder("x" if entry.op == "placeholder" else "z")}
    size = graph.call_method("size", (copies[entry], 0)) if batch_size.intersection(nodes) else None
    for node in nodes:
        if node in batch_size and size is not None:
            copies[node] = size
        else:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(copies[result])
    targets = {str(node.target) for node in nodes if node.op in ("call_module", "get_attr")}
    return fx.GraphModule({target: traced.parts[target] for target in traced.parts if target in targets}, graph)


def plain_tail(traced: Traced, cut: fx.Node, nodes: list[fx.Node], seen: tuple[Seen, Seen]) -> nn.Module | None:
    """The tail as nn.Sequential where it is a chain of layers, since chains run fastest through that; else None."""
    batch_size, fixed = batch_sizes(seen), constants(list(traced.graph.nodes))
    shapes = seen[0].shapes
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    previous = cut
    for node in nodes:
        if node in batch_size or node in fixed or node not in shapes:
            if node in shapes:
                return None
            continue  # sizes: a flatten needs none of them
        if node.op == "call_module":
            # More than one argument, and the module is no layer of a chain.
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
        if name != previous and name in groups:
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
