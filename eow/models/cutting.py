"""Where a traced network can be cut, and its two parts at a cut.

A cut is a place where one tensor carries everything: nothing that was computed before it is needed after it, but for
what either part can find for itself, which is constants and the size of the batch.
"""

import keyword
from typing import Any, NamedTuple

from torch import Tensor, fx, nn
from torch.fx.graph_module import reduce_graph_module
from torch.utils import _pytree as pytree

from eow.errors import EowError
from eow.models.constant import constants, moves
from eow.models.keeping import CHANGES, new, version
from eow.models.plaintail import plain_tail
from eow.models.split import INPUT
from eow.models.tracing import ROOT, Detached, Traced

PENULTIMATE = "penultimate"


class Part(fx.GraphModule):
    """A GraphModule that is called like any other module: torch's own also prints a traceback to stderr whenever what
    it computes raises. Each has a class of its own, which `recompile` writes `forward` and `__call__` into."""

    def recompile(self) -> Any:
        code = super().recompile()
        del type(self).__call__
        return code

    def __reduce__(self) -> tuple[Any, ...]:
        _, (body, imports) = super().__reduce__()
        return loaded, ({key: value for key, value in body.items() if key != "_compiled_call_impl"}, imports)


def loaded(body: dict[str, Any], imports: str) -> nn.Module:
    """A part that was saved: torch makes a plain GraphModule of it."""
    module = reduce_graph_module(body, imports)
    type(module).__bases__ = (Part,)
    module.recompile()  # type: ignore[operator]
    return module


class Seen(NamedTuple):
    """What a node computed for a batch of `rows`."""

    rows: int
    shapes: dict[fx.Node, tuple[int, ...]]  # of floating-point tensors
    numbers: dict[fx.Node, int]
    moving: set[fx.Node]  # what is not a constant, although it depends on no input


class Recorder(fx.Interpreter):
    """Runs the graph and keeps shapes and whole numbers; of tensors nothing stays."""

    def __init__(self, module: fx.GraphModule, rows: int) -> None:
        super().__init__(module)
        self.seen = Seen(rows, {}, {}, set())
        self.fixed = constants(list(module.graph.nodes), set())
        self.extra_traceback = False  # what is raised here is a sentence

    def run_node(self, n: fx.Node) -> Any:
        watched = n.all_input_nodes if n.op == "call_module" and n.meta.get("no_grad") else []
        given = [self.env[each] for each in watched if self.matters(each) and isinstance(self.env[each], Tensor)]
        versions = [version(each) for each in given]
        if n in self.fixed and moves(self, n):
            self.seen.moving.add(n)
        value = super().run_node(n)
        if [version(each) for each in given] != versions:
            raise EowError(f"the layer {n.target} {CHANGES}: let it change a clone, or compute without torch.no_grad()")
        if n.op == "call_module" and isinstance(self.fetch_attr(str(n.target)), Detached):
            refuse_opaque(value)
        if isinstance(value, Tensor) and value.is_floating_point() and n.op != "get_attr":
            self.seen.shapes[n] = tuple(value.shape)
        elif isinstance(value, int):
            self.seen.numbers[n] = value
        return value

    def matters(self, node: fx.Node) -> bool:
        """Whether a gradient would change if this tensor changed behind autograd's back: it has one, and the tensor, or
        what shares its memory, is read again."""
        if not node.meta["outside"] or (len(node.users) == 1 and new(node, self.module)):
            return False
        found, todo = {node}, [node]
        while todo:
            each = todo.pop()
            if each.op == "get_attr" or (each.op == "call_module" and self.trainable(each)):
                return True
            todo += [other for other in each.all_input_nodes if other not in found]
            found.update(todo)
        return False

    def trainable(self, node: fx.Node) -> bool:
        return next(self.fetch_attr(str(node.target)).parameters(), None) is not None


def refuse_opaque(value: Any) -> None:
    """Tensors in an object that torch cannot look into would keep the gradient they must not have."""
    for leaf in pytree.tree_leaves(value):
        inside = vars(leaf).values() if hasattr(leaf, "__dict__") and not isinstance(leaf, Tensor) else ()
        if any(isinstance(each, Tensor) for each in inside):
            raise EowError(
                f"the model computes a {type(leaf).__name__} inside torch.no_grad(), and what is in it cannot be kept "
                "from gradients: take its tensors out of it before the torch.no_grad() ends"
            )


def refuse_names(traced: Traced) -> None:
    """Layers and tensors of the outermost module become attributes of a part, which has some already."""
    part = Part({}, fx.Graph())
    for name in sorted({target.partition(".")[0] for target in traced.parts}):
        if hasattr(part, name):
            raise EowError(f"the model has a layer or tensor called {name!r}, a name that torch.fx needs: rename it")
    for target in traced.parts:
        if words := [name for name in target.split(".") if keyword.iskeyword(name)]:
            raise EowError(
                f"the model has a layer or tensor called {target!r}, and {words[0]} is a word of Python, of which "
                "torch.fx cannot write code: rename it"
            )


def possible_cuts(traced: Traced, head: fx.Node, seen: tuple[Seen, Seen]) -> dict[str, fx.Node]:
    """Every cut by each of its names, in the order of the computation: `input`, modules by their paths, functions of
    the outermost `forward` by the graph's names, and `penultimate`, the head's input without the dropout before it,
    whatever else is called so. What lies before a torch.no_grad() is none: no gradient would reach a chain there."""
    nodes = list(traced.graph.nodes)
    place = {node: index for index, node in enumerate(nodes)}
    fixed, batch_size = constants(nodes, seen[0].moving), batch_sizes(seen)
    last = {}
    for node in nodes:
        uses = [place[user] for user in node.users if user not in batch_size]
        last[node] = max(uses, default=-1) if node not in fixed and node not in batch_size else -1
    by_node: dict[fx.Node, list[str]] = {}
    for path, returned in traced.outputs.items():
        for call, node in enumerate(returned):  # a module that is called twice is two places
            by_node.setdefault(node, []).append(f"{path}_{call}" if call else path)
    before = head.all_input_nodes[0]
    while isinstance(traced.parts.get(str(before.target)), nn.Dropout | nn.Identity):
        before = before.all_input_nodes[0]
    cuts: dict[str, fx.Node] = {}
    reached = with_gradient(traced, head)
    for index, node in enumerate(nodes[: place[head]]):
        crossing = [other for other in nodes[: index + 1] if last[other] > index]
        if crossing != [node] or not batched(node, seen) or node not in reached:
            continue
        own = [node.name] if node.meta["within"] == ROOT else []  # functions inside modules have no name anybody knows
        names = [INPUT] if node.op == "placeholder" else sorted(by_node.get(node, own), key=depth)
        names = [name for name in names if name != PENULTIMATE]
        for name in [*names, PENULTIMATE] if node is before else names:
            cuts.setdefault(name, node)
    return cuts


def with_gradient(traced: Traced, head: fx.Node) -> set[fx.Node]:
    """The nodes that the logits have a gradient with respect to."""
    reached: set[fx.Node] = set()
    waiting = [head]
    while waiting:
        node = waiting.pop()
        if node in reached:
            continue
        reached.add(node)
        detaches = isinstance(traced.parts.get(str(node.target)), Detached)
        if not detaches and (node.op, node.target) != ("call_method", "detach"):
            waiting.extend(node.all_input_nodes)
    return reached


def depth(path: str) -> tuple[int, str]:
    return path.count("."), path


def batch_sizes(seen: tuple[Seen, Seen]) -> set[fx.Node]:
    """Numbers that are the batch's size, whichever it is: the tail can ask its own input for them."""
    first, second = seen
    return {n for n, value in first.numbers.items() if value == first.rows and second.numbers[n] == second.rows}


def batched(node: fx.Node, seen: tuple[Seen, Seen]) -> bool:
    """Whether this is a tensor of one row a sample."""
    first, second = (each.shapes.get(node) for each in seen)
    if not first or not second:
        return False
    return (first[0], second[0]) == (seen[0].rows, seen[1].rows) and first[1:] == second[1:]


def split(traced: Traced, cut: fx.Node, seen: tuple[Seen, Seen]) -> tuple[nn.Module, nn.Module]:
    """The modules before and after the cut, sharing what both use."""
    nodes = list(traced.graph.nodes)
    position = nodes.index(cut)
    encoder: nn.Module = nn.Identity()
    if cut.op != "placeholder":
        encoder = part(traced, nodes[0], nodes[1 : position + 1], cut, set())
    fixed, output = constants(nodes, seen[0].moving), nodes[-1].args[0]
    assert isinstance(output, fx.Node)
    rest = nodes[position + 1 : -1]
    for node in reversed(nodes[:position]):  # constants that were made before the cut and are needed after it
        if node in fixed and set(node.users).intersection(rest):
            rest.insert(0, node)
    tail = plain_tail(traced, cut, nodes[position + 1 : -1], seen[0].shapes, fixed)
    return encoder, tail or part(traced, cut, rest, output, batch_sizes(seen))


def part(traced: Traced, entry: fx.Node, nodes: list[fx.Node], result: fx.Node, batch_size: set[fx.Node]) -> Part:
    """The module that computes `result` by `nodes` from `entry`."""
    graph = fx.Graph()
    copies = {entry: graph.placeholder("x" if entry.op == "placeholder" else "z")}
    if batch_size:
        copies.update(dict.fromkeys(batch_size, graph.call_method("size", (copies[entry], 0))))
    for node in nodes:
        if node not in batch_size:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(copies[result])
    targets = {str(node.target) for node in nodes if node.op in ("call_module", "get_attr")}
    return Part({target: traced.parts[target] for target in traced.parts if target in targets}, graph)


def one_name_each(cuts: dict[str, fx.Node]) -> list[str]:
    """Every place under the shortest of its names, and `penultimate`."""
    first = {node: name for name, node in reversed(cuts.items())}
    return [name for name, node in cuts.items() if first[node] == name or name == PENULTIMATE]
