"""Somebody else's network, read as a torch.fx graph.

Modules without children are taken as they are, and so is one that cannot be traced, that computes something else in
training than in evaluation, or that does what a graph does not keep: the graph is read again with that module closed.
Only the outermost `forward` has to be traceable.
"""

import inspect
import operator
import sys
import threading
from collections.abc import Iterable
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from eow.errors import EowError
from eow.models.allowing import einops_functions, guarded, sized
from eow.models.generators import content, forked, generators, own_generators
from eow.models.keeping import (
    Derived,
    Drawn,
    Lost,
    Value,
    kept,
    outside,
    refuse_functions,
    refuse_in_place,
    state_of,
    stores_of,
    undisturbed,
)
from eow.models.refusing import WHOLE, refuse_arguments, refuse_hooks, taken_whole, with_modes_of_their_own
from eow.models.split import in_mode
from eow.plain import first_line

ROOT = "model"  # where the wrapper holds the network
AGAIN = 8  # so often a network is read once more if random numbers were drawn that another thread may have drawn

# Written as functions they bake the mode in which they were traced into the graph; as modules they follow it.
DROPOUTS: dict[Any, type[nn.Module]] = {
    F.dropout: nn.Dropout,
    F.dropout1d: nn.Dropout1d,
    F.dropout2d: nn.Dropout2d,
    F.dropout3d: nn.Dropout3d,
    F.alpha_dropout: nn.AlphaDropout,
    F.feature_alpha_dropout: nn.FeatureAlphaDropout,
}


class Traced(NamedTuple):
    graph: fx.Graph
    parts: dict[str, Any]  # what the graph's targets name: modules, parameters, constants
    outputs: dict[str, list[fx.Node]]  # by a module's path, what its calls returned
    baked: set[tuple[str, str]]  # buffers of which constants were computed, and the module that did it


class Whole(nn.Module):
    """A network as a function of one tensor: its other arguments keep their defaults, and are not traced."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Any:
        return self.model(x)


class Detached(nn.Module):
    """What torch.no_grad() computed, whatever it is, on its way out of that block. A module and no function, since a
    graph that is saved is traced again when it is loaded, through functions but not through modules."""

    def forward(self, value: Any) -> Any:
        return pytree.tree_map_only(Tensor, Tensor.detach, value)


class ModuleTracer(fx.Tracer):
    """torch.fx's tracer, which also remembers what every module returned and inside which module a node was made."""

    def __init__(self, closed: set[str]) -> None:
        functions = einops_functions()
        super().__init__(param_shapes_constant=True, autowrap_functions=tuple(functions))
        if functions:
            self._autowrap_search.append(sys.modules["einops"])  # where they are called as einops.rearrange
        self.closed = closed
        self.within = [ROOT]
        self.culprit: str | None = None  # the innermost module that could not be traced
        self.returned: dict[str, list[fx.Node]] = {}
        self.baked: set[tuple[str, str]] = set()
        self.derived: Derived | None = None
        self.generators: list[Any] = []  # the network's own
        self.stores: list[dict[str, Any]] = []  # of its parameters and buffers: looked up once, since asked so often
        self.thread = threading.get_ident()  # torch.fx hears of the modules of all threads

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return module_qualified_name in self.closed or taken_whole(m, module_qualified_name)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        if threading.get_ident() != self.thread:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        if threading.get_ident() != self.thread:
            return forward(*args, **kwargs)
        try:
            path = self.path_of_module(m)
        except NameError:  # made on the way: a slice of an nn.Sequential, or nn.ReLU()(x)
            return forward(*args, **kwargs)
        if self.is_leaf_module(m, path):
            returned = super().call_module(m, forward, args, kwargs)  # a node: nothing of it is run
        else:
            returned = self.read(path, m, forward, args, kwargs)
        if isinstance(returned, fx.Proxy):
            self.returned.setdefault(path, []).append(returned.node)
        return returned

    def read(self, path: str, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        """What a module returns whose forward becomes part of the graph."""
        self.within.append(path)
        before, state = generators(self.generators), state_of(self.stores)
        try:
            returned = super().call_module(m, forward, args, kwargs)
            if generators(self.generators) != before:
                raise Drawn("draws random numbers in Python, and a graph keeps them as they fell this once")
            if state_of(self.stores) != state:
                raise Lost("changes a parameter or a buffer, and a graph does not keep that")
        except Exception:
            if self.culprit is None:
                self.culprit = path
            raise
        self.within.pop()
        return returned

    def proxy(self, node: fx.Node) -> Value:
        return Value(node, self)

    def to_bool(self, obj: fx.Proxy) -> bool:
        """An assert, or an `if` before a raise, is kept: it is taken to hold, and is asked at every call."""
        frame = inspect.currentframe()
        asking = frame.f_back.f_back if frame and frame.f_back else None  # bool() lies between
        wanted = guarded(asking)
        if wanted is None or asking is None:
            return super().to_bool(obj)
        holds = obj if wanted else obj == False  # noqa: E712 (`not obj` would ask again)
        words = f"what {asking.f_code.co_qualname} asks of its input does not hold"
        self.create_proxy("call_function", torch._assert, (holds, words), {})
        return wanted

    def create_arg(self, a: Any) -> Any:
        """A tensor that is not a node becomes a constant of the graph, unless it is a buffer itself, and a number of
        numpy's one of Python's, of which code can be written."""
        if isinstance(a, np.generic):
            return super().create_arg(a.item())
        if isinstance(a, Tensor) and not isinstance(a, nn.Parameter):
            if a.requires_grad:
                raise Lost("computes with parameters that it does not read by their names, and a graph would not train")
            if self.derived is not None and not any(a is each for each in self.root.buffers()):
                self.baked |= {(name.removeprefix(f"{ROOT}."), self.within[-1]) for name in self.derived.names(a)}
        return super().create_arg(a)

    def create_node(self, kind: str, target: Any, args: Any, kwargs: Any, *more: Any, **options: Any) -> fx.Node:
        no_grad = kind != "get_attr" and not torch.is_grad_enabled()  # a parameter is the same wherever it is read
        node = super().create_node(kind, target, args, kwargs, *more, **options)
        node.meta["within"], node.meta["no_grad"] = self.within[-1], no_grad
        if no_grad:
            refuse_functions()
            refuse_in_place(node, self.root)
        node.meta["outside"] = outside(node, self.root)
        return node


def trace(model: nn.Module, apart: Iterable[str] = ()) -> Traced:
    """The network's graph, the same in training and in evaluation, with the modules in `apart` closed."""
    refuse_hooks(model)
    refuse_arguments(model)
    closed = {*apart, *(f"{ROOT}.{path}" for path in with_modes_of_their_own(model))}
    again = 0
    while True:
        readings = []
        for training in (False, True):
            tracer, root = ModuleTracer(closed), Whole(model)
            tracer.derived, tracer.generators, tracer.stores = Derived(root), own_generators(model), stores_of(model)
            try:
                with (
                    in_mode(model, training),
                    kept(model),
                    forked(model),
                    undisturbed(),
                    tracer.derived,
                    sized(),
                ):
                    readings.append((tracer, tracer.trace(root), root))
            except Exception as error:
                culprit = tracer.culprit
                if isinstance(error, Drawn) and threading.active_count() > 1 and again < AGAIN:
                    again += 1
                    break
                if culprit is None or culprit == ROOT or culprit in closed:
                    raise EowError(untraceable(type(model).__name__, error)) from error
                closed |= with_its_like(culprit, model)
                break
        if len(readings) < 2:
            continue
        (tracer, graph, root), (other, trained, roots) = readings
        culprit = difference(graph, trained, root, roots)
        if culprit is None:
            tracer.baked |= other.baked
            return finished(tracer, graph, trained, root)
        if culprit == ROOT:
            raise EowError(
                f"{type(model).__name__}.forward computes something else in training than in evaluation: put what "
                f"differs into a module of its own, such as nn.Dropout, {WHOLE}"
            )
        closed |= with_its_like(culprit, model)


def with_its_like(culprit: str, model: nn.Module) -> set[str]:
    """A module that has to be closed, and all of its class where there are no layers with weights inside: one by one
    each would cost two readings, and a deep network has hundreds of such norms."""
    paths = {f"{ROOT}.{path}": module for path, module in model.named_modules() if path}
    kind = type(paths[culprit]) if plain_inside(paths[culprit]) else None
    return {culprit, *(path for path, module in paths.items() if type(module) is kind and plain_inside(module))}


def plain_inside(module: nn.Module) -> bool:
    return not any(True for child in module.children() for _ in child.parameters())


def untraceable(model: str, error: Exception) -> str:
    if isinstance(error, Lost):
        return f"{model}.forward {error}: put that into a module of its own, {WHOLE}"
    return (
        f"torch.fx cannot trace {model}.forward ({first_line(error)}): write it without decisions on the input's "
        f"values or shape, {WHOLE}"
    )


def difference(graph: fx.Graph, trained: fx.Graph, root: Whole, trained_root: Whole) -> str | None:
    """The module in which two graphs begin to differ, but for what dropout functions are told of the mode.

    Of the two modules that the next nodes lie in, it is the one that has not been left yet, or else the deeper one.
    """
    last = ROOT
    for one, other in zip_longest(graph.nodes, trained.nodes):
        if one is None or other is None or signature(one, root) != signature(other, trained_root):
            paths = [str(node.meta["within"]) for node in (one, other) if node is not None]
            return max(paths, key=lambda path: (f"{path}.".startswith(f"{last}."), path.count(".")))
        last = str(one.meta["within"])
    return None


def signature(node: fx.Node, root: Whole) -> tuple[Any, ...]:
    kwargs = {key: value for key, value in node.kwargs.items() if node.target not in DROPOUTS or key != "training"}
    constant = vars(root).get(str(node.target)) if node.op == "get_attr" else None  # that the tracer put there
    return node.op, node.target, str(node.args), str(kwargs), content(constant)


def finished(tracer: ModuleTracer, graph: fx.Graph, trained: fx.Graph, root: Whole) -> Traced:
    """Targets under the names the user knows, dropout as modules, and `view` as `reshape`, which is the same where
    `view` works and also takes the strided tensors that a GPU is given."""
    parts: dict[str, Any] = {}
    for node, other in zip(graph.nodes, list(trained.nodes)):
        node.meta["no_grad"] = other.meta["no_grad"]  # in evaluation nothing is trained anyway
        if node.op in ("call_module", "get_attr"):
            value = operator.attrgetter(str(node.target))(root)
            node.target = str(node.target).removeprefix(f"{ROOT}.")
            parts[node.target] = value
        elif node.target in DROPOUTS and node.kwargs != other.kwargs:
            options, path = node.kwargs, free(node.name, root.model)
            parts[path] = DROPOUTS[node.target](options.get("p", 0.5), bool(options.get("inplace", False)))
            node.op, node.target, node.kwargs, node.args = "call_module", path, {}, node.args[:1]
        elif node.op == "call_method" and node.target == "view" and torch.dtype not in map(type, node.args):
            node.target = "reshape"
    outputs = {path.removeprefix(f"{ROOT}."): nodes for path, nodes in tracer.returned.items() if path != ROOT}
    detach(graph, parts, outputs, free("detached", root.model))
    return Traced(graph, parts, outputs, tracer.baked)


def free(name: str, model: nn.Module) -> str:
    """The name, or one like it that nothing of the model has."""
    while hasattr(model, name):
        name += "_"
    return name


def detach(graph: fx.Graph, parts: dict[str, Any], outputs: dict[str, list[fx.Node]], path: str) -> None:
    """Nothing that was computed inside torch.no_grad() leaves it with a gradient."""
    for node in list(graph.nodes):
        outside = [user for user in node.users if not user.meta["no_grad"]]
        if not node.meta["no_grad"] or not outside:
            continue
        parts[path] = Detached()
        with graph.inserting_after(node):
            leaving = graph.call_module(path, (node,))
        leaving.meta.update(node.meta, no_grad=False)
        for user in outside:
            user.replace_input_with(node, leaving)
        for returned in outputs.values():
            returned[:] = [leaving if each is node else each for each in returned]
