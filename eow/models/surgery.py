"""`eow.upgrade`: a K+1-th "unknown" logit for a classifier that somebody already has.

The model is copied, cut in two where one tensor carries everything, and its last linear layer widened from K to K+1
outputs, the last of them linear or quadratic in the features (layers.OpenLinear, with no square as long as it has not
been trained). The K old logits stay as they are, bit for bit. The new one starts as their mean less 16: since
logsumexp(f) >= mean(f) + log K, the unknown then has a probability below e^-16 / K, a ten-millionth, for every input
and whatever the logits' scale or offset, so no prediction moves. Training can still lift it: the gradient of
-log h[K+1] with respect to the unknown logit is h[K+1] - 1, which is largest where the unknown is smallest.
"""

import copy as copying
import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from eow.errors import EowError
from eow.models.comparing import changed_in_training, compare, other_in_training, said_in_training
from eow.models.cutting import PENULTIMATE, Part, Recorder, Seen, one_name_each, possible_cuts, refuse_names, split
from eow.models.headless import last_to_speak, without_head
from eow.models.keeping import about_a_tensor
from eow.models.probing import SMALL, at_rest, described, evaluated, probe
from eow.models.refusing import PAIR, WHOLE, asking_for_tensors, refuse_closures, refuse_gradient_hooks
from eow.models.split import SplitModel, unwrapped
from eow.models.tracing import ROOT, Traced, trace
from eow.models.widening import WidenedLinear, WidenedOpenLinear, checked_head, find_head, refuse_quantized, widened
from eow.plain import first_line

ONE_AT_A_TIME = threading.RLock()  # reading a model patches torch, and the random generators are the process's


class UpgradedModel(SplitModel):
    """What `upgrade` returns: a SplitModel of K+1 logits that knows its head and where it could have been cut.

    `odds` are the prior odds of "unknown" that the last training ended with, 0 before any; `eow.predict` re-sets them.
    """

    odds: Tensor

    def __init__(
        self, encoder: nn.Module, tail: nn.Module, head: str, cut: str | None, cuts: Sequence[str], integers: bool
    ) -> None:
        super().__init__(encoder, tail)
        self._head, self._cut, self._cuts, self.integers = head, cut, tuple(cuts), integers
        device = next((tensor.device for tensor in tail.parameters()), None)
        self.register_buffer("odds", torch.zeros((), device=device))

    @property
    def head(self) -> nn.Linear:
        head = self.tail.get_submodule(self._head)
        assert isinstance(head, nn.Linear)
        return head

    @property
    def classes(self) -> int:
        """K, without the unknown."""
        return self.head.out_features - 1

    @property
    def cuts(self) -> tuple[str, ...]:
        return self._cuts

    def recut(self, cut: str) -> "SplitModel":
        raise EowError(f"an upgraded model keeps its cut: upgrade the original again with cut={cut!r}")

    def blank(self, in_shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        if not self.integers:
            return super().blank(in_shape, dtype)
        return torch.ones(1, *in_shape, dtype=torch.long)  # 0 is often padding, and a row of it is none

    def extra_repr(self) -> str:
        return f"cut={self.cut!r}, classes={self.classes}"


@torch.inference_mode(mode=False)
def upgrade(
    model: nn.Module | tuple[nn.Module, nn.Module],
    cut: str | None = None,
    classes: int | None = None,
    example: Any = None,
    *,
    unknown: str = "quadratic",
    trace: bool = True,
    copy: bool = True,
) -> UpgradedModel:
    """The model with an "unknown" logit, cut in two, ready for `eow.fit`. Its K logits and its predictions are those of
    the given model, which is not touched.

    model    anything torch.fx can trace, or a pair (encoder, tail) with tail(encoder(x)) the logits
    cut      where the chains run: a module by its path ("layer3", "features"), "input", or by default
             "penultimate", the input of the last linear layer; the result's `cuts` lists all
    classes  checked against the last linear layer, which is widened, whether trained or frozen
    example  a batch of inputs, whose first rows are put through the model; without one their shape is guessed from
             the first layer
    unknown  "quadratic" in what the last layer reads, so that it can rise in every direction away from the data,
             "convex", so that it never falls far out, or "linear", as in the paper
    trace    False for a model that torch.fx cannot trace and that ends in a linear layer: that layer is taken off, the
             rest is kept as it is written, and the only cut is "penultimate". A few inputs show whether the layer's
             logits come out unchanged; what the forward does to them for other inputs cannot be seen. Of a mapping
             (as Hugging Face's models return) or a dataclass, its tensor `logits` is used
    copy     False shares the weights of all layers but the last with the given model, so that training trains both
             (the tail of a pair is used itself: its last layer becomes the wider one)

    Only one thread upgrades at a time. Others may predict meanwhile, but not with a model that is upgraded with
    `copy=False`. They should not train: random numbers that they draw again and again look as if this model drew them,
    and it would be refused.
    """
    original = whole = given(model)
    if copy:
        refuse_closures(original)
        refuse_gradient_hooks(original)
        try:
            whole = copying.deepcopy(original)
        except (RuntimeError, TypeError) as error:
            raise EowError(
                f"the model cannot be copied ({first_line(error)}): call it once inside torch.no_grad(), so "
                "that it keeps no tensors of an earlier forward pass with gradients, or upgrade with copy=False"
            ) from error
    with ONE_AT_A_TIME:
        if isinstance(whole, SplitModel):
            return upgraded_pair(whole, cut, classes, example, unknown)
        if not trace:
            return upgraded_unread(whole, cut, classes, example, unknown, original)
        return upgraded_whole(whole, cut, classes, example, unknown, original)


def upgraded_whole(
    whole: nn.Module,
    cut: str | None,
    classes: int | None,
    example: Any,
    unknown: str,
    original: nn.Module,
    closed: frozenset[str] = frozenset(),
) -> UpgradedModel:
    """A model as it is written, or a copy of the original, read as a graph and cut in two."""
    traced, node, head, x = read(whole, classes, example, closed)
    graph_module = Part(traced.parts, traced.graph)
    seen = look(graph_module, x[:SMALL]), look(graph_module, x)
    cuts = possible_cuts(traced, node, seen)
    wanted = PENULTIMATE if cut is None else cut
    if wanted not in [*cuts]:
        raise EowError(no_cut(wanted, cuts, wanted in [path for path, _ in whole.named_modules()]))
    old = evaluated(whole, x)
    wide = traced.parts[str(node.target)] = widened(head, unknown)
    for name, each in wide.named_parameters():  # which a forward may ask for its type or device
        if f"{node.target}.{name}" in traced.parts:
            traced.parts[f"{node.target}.{name}"] = each
    result = UpgradedModel(*split(traced, cuts[wanted], seen), str(node.target), wanted, one_name_each(cuts),
                           not x.is_floating_point())  # fmt: skip
    restore_modes(result, whole)
    compare(old, result, x)
    if why := other_in_training(whole, result, x, original):
        asking = frozenset(f"{ROOT}.{path}" for path in asking_for_tensors(whole)) - closed
        if asking:
            return upgraded_whole(whole, cut, classes, example, unknown, original, closed | asking)
        raise EowError(
            f"in training, cut in two, the model {why}: its forward must not decide by what its input is, as "
            f"isinstance(x, Tensor) does, nor by what changes from call to call: put that into a module of its own, "
            f"{WHOLE}"
        )
    refuse_without_gradient(result, x)
    return result


def read(
    whole: nn.Module, classes: int | None, example: Any, closed: frozenset[str] = frozenset()
) -> tuple[Traced, fx.Node, nn.Linear, Tensor]:
    """The model's graph, the node of its head, the head, and a batch that it can take."""
    traced = trace(whole, closed)
    refuse_names(traced)
    node = find_head(traced, type(whole).__name__)
    head = checked_head(traced.parts[str(node.target)], str(node.target), whole, classes)
    called = [traced.parts[str(other.target)] for other in traced.graph.nodes if other.op == "call_module"]
    if sum(module is head for module in called) > 1:
        raise EowError(f"the last linear layer, {node.target}, is used twice in the model: give the logits their own")
    own = {id(each) for each in head.parameters()}
    asked = [n for n in traced.graph.nodes if n.op == "get_attr" and id(traced.parts[str(n.target)]) in own]
    if any(not about_a_tensor(user) for each in asked for user in each.users):
        raise EowError(
            f"the model reads the weights of its last linear layer, {node.target}, beside calling it, which widening "
            "would undo: give what reads them weights of its own"
        )
    layers = (layer for module in called for layer in module.modules())  # of a closed one what is in it
    x, _ = probe(Part(traced.parts, traced.graph), layers, example)
    changing = changed_in_training(whole, x) if traced.baked else set()
    stale = {where: name for name, where in traced.baked if name in changing}
    if ROOT in stale:
        raise EowError(
            f"{type(whole).__name__}.forward computes with the buffer {stale[ROOT]}, which changes in training, and a "
            f"graph would keep what it is now: put that into a module of its own, {WHOLE}"
        )
    return read(whole, classes, example, closed | stale.keys()) if stale else (traced, node, head, x)


def given(model: Any) -> nn.Module:
    """What is to be upgraded: a plain model, or a SplitModel of the pair."""
    model = unwrapped(model)
    if isinstance(model, torch.jit.ScriptModule):
        raise EowError("the model is one of torch.jit, whose layers cannot be taken apart: pass the one it was made of")
    for path, each in model.named_modules() if isinstance(model, nn.Module) else ():
        if isinstance(each, torch.jit.ScriptModule):
            raise EowError(
                f"the layer {path} is one of torch.jit, which cannot be copied whole: put in what it was made of"
            )
    if isinstance(model, UpgradedModel) or (isinstance(model, nn.Module) and has_widened(model)):
        raise EowError("the model has an unknown logit already: train it with eow.fit")
    if isinstance(model, tuple | list):
        if len(model) != 2 or not all(isinstance(part, nn.Module) for part in model):
            raise EowError("a model in parts is a pair (encoder, tail) of two nn.Modules: put all others into these")
        model = SplitModel(*model)
    if not isinstance(model, nn.Module):
        raise EowError(f"the model is a {type(model).__name__}: pass an nn.Module or a pair (encoder, tail) of them")
    lazy = (nn.parameter.UninitializedParameter, nn.parameter.UninitializedBuffer)
    if any(isinstance(each, lazy) for each in (*model.parameters(), *model.buffers())):
        raise EowError("the model has lazy layers that have seen no input yet: call model(x) once before upgrading")
    if any(each.is_meta for each in model.parameters()):
        raise EowError("the model lies on the device meta, where it has no weights: load them before upgrading")
    return model


def has_widened(model: nn.Module) -> bool:
    return any(isinstance(module, WidenedLinear | WidenedOpenLinear) for module in model.modules())


def upgraded_unread(
    whole: nn.Module, cut: str | None, classes: int | None, example: Any, unknown: str, original: nn.Module
) -> UpgradedModel:
    """A model of which no graph is read: all of it but its last layer is the encoder."""
    if cut not in (None, PENULTIMATE):
        raise EowError(f"with trace=False a model is cut before its last layer alone: leave cut={cut!r} out")
    result = upgraded_pair(without_head(whole, classes, example, original), None, classes, example, unknown)
    result._cut, result._cuts = PENULTIMATE, (PENULTIMATE,)
    return result


def upgraded_pair(parts: SplitModel, cut: str | None, classes: int | None, example: Any, unknown: str) -> UpgradedModel:
    """Two parts as they are. No graph is read, so the parts may compute as they like."""
    if cut is not None and cut != parts.cut:
        if not parts.cuts:
            raise EowError(f"a pair (encoder, tail) is cut already: leave cut={cut!r} out")
        parts = parts.recut(cut)
    linears = [(path, module) for path, module in parts.tail.named_modules() if isinstance(module, nn.Linear)]
    if not linears:
        for path, module in parts.tail.named_modules():
            refuse_quantized(path or "the tail", module)
        raise EowError("the tail has no nn.Linear to serve as head: let it end in the model's last linear layer")
    x, old = probe(parts, parts.modules(), example)
    path, old_head = last_to_speak(parts, linears, x)
    head = checked_head(old_head, path or "tail", parts, classes)
    if any(module is head for module in parts.encoder.modules()):
        raise EowError("encoder and tail share the last linear layer: give the logits a layer of their own")
    latent = evaluated(parts.encoder, x)
    for each, when in ((latent, ""), (said_in_training(parts.encoder, x, latent), " in training")):
        if not isinstance(each, Tensor) or not each.is_floating_point() or len(each) != len(x):
            raise EowError(
                f"the encoder returns {described(each)} for {len(x)} inputs{when}: let it return one floating-point "
                "tensor with a row for each, for example the pooled output"
            )
    wide = widened(head, unknown)
    tail: nn.Module = wide
    if path:
        parts.tail.set_submodule(path, wide)
        tail = parts.tail
    result = UpgradedModel(parts.encoder, tail, path, parts.cut, parts.cuts, not x.is_floating_point())
    result.training = parts.training
    said: list[Tensor] = []
    handle = wide.register_forward_hook(lambda module, args, output: said.append(output))
    try:
        new = compare(old, result, x)
        # A softmax after the head would pass the comparison: so low does the unknown start.
        if not said or not torch.equal(said[-1], new):
            raise EowError("the tail changes what its last linear layer says: let it return those logits as they are")
    except Exception:
        if path:
            parts.tail.set_submodule(path, head)
        raise
    finally:
        handle.remove()
    return result


def no_cut(wanted: str, cuts: dict[str, fx.Node], is_module: bool) -> str:
    names = one_name_each(cuts)
    if len(names) > 40:
        names = [name for name in names if name.count(".") < 2]
    if not names:
        return f"the model has no place where one tensor carries everything and a gradient arrives: make one, {PAIR}"
    why = f"{wanted!r} is no place where one tensor carries everything" if is_module else f"there is no cut {wanted!r}"
    return f"{why}: choose one of {', '.join(names)}"


def look(module: fx.GraphModule, x: Tensor) -> Seen:
    recorder = Recorder(module, len(x))
    with at_rest(module, x), torch.no_grad():
        recorder.run(x.clone())
    return recorder.seen


def refuse_without_gradient(model: UpgradedModel, x: Tensor) -> None:
    """Chains follow the gradient of the logits at the cut: there must be one."""
    with at_rest(model, x), torch.enable_grad():
        z = model.encoder(x.clone()).detach().requires_grad_()
        try:
            (arrived,) = torch.autograd.grad(model.tail(z.clone()).sum(), z, allow_unused=True)
            why = "the model goes on without gradients from there"
        except RuntimeError as error:
            arrived, why = None, first_line(error)
    if arrived is None:
        others = [name for name in model.cuts if name != model.cut]
        choose = f"choose one of {', '.join(others)}" if others else "compute with gradients behind it"
        raise EowError(f"no gradient arrives at the cut {model.cut!r} ({why}): {choose}")


def restore_modes(result: UpgradedModel, whole: nn.Module) -> None:
    """The containers that a graph makes for its modules are new: they get the modes of those they stand for."""
    modes = {path: module.training for path, module in whole.named_modules()}
    for part in (result.encoder, result.tail):
        for path, module in part.named_modules():
            module.training = modes.get(path, whole.training)
    result.training = whole.training
