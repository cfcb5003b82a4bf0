"""Somebody else's network, read as a torch.fx graph.

Modules without children are taken as they are, and so is one that cannot be traced or that computes something else in
training than in evaluation: the graph is read again with that module closed. Only the outermost `forward` has to be
traceable.
"""

import operator
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from eow.errors import EowError
from eow.models.split import in_mode

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
