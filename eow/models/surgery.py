"""`eow.upgrade`: a K+1-th "unknown" logit for a classifier that somebody already has.

The model is copied, cut in two where one tensor carries everything, and its last linear layer widened from K to K+1
outputs. The K old logits stay as they are, bit for bit. The new one starts as their mean less 16: since
logsumexp(f) >= mean(f) + log K, the unknown then has a probability below e^-16 / K, a ten-millionth, for every input
and whatever the logits' scale or offset, so no prediction moves. Training can still lift it: the gradient of
-log h[K+1] with respect to the unknown logit is h[K+1] - 1, which is largest where the unknown is smallest.
"""

import copy as copying
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from eow.errors import EowError
from eow.models.split import SplitModel, frozen_statistics
from eow.models.tracing import PAIR, PENULTIMATE, Recorder, Seen, Traced, possible_cuts, split, trace

BELOW = 16.0  # how far below the mean of the K logits the unknown starts
SIDES = (32, 64, 224, 28, 8, 16, 96, 128, 256, 299, 384)  # of images, tried in this order
LENGTHS = (128, 1024, 16000)  # of signals
SMALL, LARGE = 2, 3  # two batch sizes: what differs between them depends on the batch
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 1e-2}
SOFTMAXES = ("softmax", "log_softmax", "sigmoid", "logsigmoid", "softmin", "Softmax", "LogSoftmax", "Sigmoid",
             "LogSigmoid", "Softmin", "Softmax2d")  # fmt: skip


class WidenedLinear(nn.Linear):
    """A linear layer with one output more. The K old ones are a product of their own: a product of K+1 columns adds up
    in another order and may differ in the last bit."""

    def __init__(self, old: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = old.in_features, old.out_features + 1
        weight = old.weight.detach()
        bias = weight.new_zeros(len(weight)) if old.bias is None else old.bias.detach()
        # Means in double precision: what is to lie 16 below the others must not be rounded there.
        self.weight = nn.Parameter(torch.cat([weight, weight.double().mean(0, keepdim=True).to(weight.dtype)]))
        self.bias = nn.Parameter(torch.cat([bias, (bias.double().mean(0, keepdim=True) - BELOW).to(bias.dtype)]))
        self.training = old.training

    def forward(self, input: Tensor) -> Tensor:
        known = F.linear(input, self.weight[:-1], self.bias[:-1])
        return torch.cat([known, F.linear(input, self.weight[-1:], self.bias[-1:])], -1)


class UpgradedModel(SplitModel):
    """What `upgrade` returns: a SplitModel of K+1 logits that knows its head and where it could have been cut.

    `lam` is the λ of the last training, 0 before: the prior odds of "unknown", which `eow.predict` re-sets.
    """

    lam: Tensor

    def __init__(
        self, encoder: nn.Module, tail: nn.Module, head: str, cut: str | None, cuts: Sequence[str], integers: bool
    ) -> None:
        super().__init__(encoder, tail)
        self._head, self._cut, self._cuts, self.integers = head, cut, tuple(cuts), integers
        device = next((tensor.device for tensor in tail.parameters()), None)
        self.register_buffer("lam", torch.zeros((), device=device))

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

    def feature_shape(self, in_shape: Sequence[int]) -> tuple[int, ...]:
        if not self.integers:
            return super().feature_shape(in_shape)
        device = next((tensor.device for tensor in self.parameters()), torch.device("cpu"))
        return tuple(evaluated(self.encoder, torch.zeros(1, *in_shape, dtype=torch.long, device=device)).shape[1:])

    def extra_repr(self) -> str:
        return f"cut={self.cut!r}, classes={self.classes}"


def upgrade(
    model: nn.Module | tuple[nn.Module, nn.Module],
    cut: str | None = None,
    classes: int | None = None,
    example: Any = None,
    *,
    copy: bool = True,
) -> UpgradedModel:
    """The model with an "unknown" logit, cut in two, ready for `eow.fit`. Its K logits and its predictions are those of
    the model given, which is not touched.

    `model` is anything torch.fx can trace, or a pair (encoder, tail) with tail(encoder(x)) the logits. `cut` names
    where the chains are to run: a module by its path ("layer3", "features"), "input", or by default "penultimate", the
    input of the last linear layer; the result's `cuts` lists all. `classes` is checked against that layer. `example` is
    a batch of inputs; without one the shape is guessed from the first layer. With `copy=False` the weights of all
    layers but the last are shared with the model given, so that training trains both.
    """
    whole = given(model)
    if copy:
        try:
            whole = copying.deepcopy(whole)
        except (RuntimeError, TypeError) as error:
            raise EowError(
                f"the model cannot be copied ({str(error).splitlines()[0]}): delete the tensors it keeps from an "
                "earlier forward pass, or upgrade with copy=False"
            ) from error
    if isinstance(whole, SplitModel):
        return upgraded_pair(whole, cut, classes, example)
    traced = trace(whole)
    node = find_head(traced, type(whole).__name__)
    head = checked_head(traced.parts[str(node.target)], str(node.target), whole, classes)
    if (
        sum(traced.parts.get(str(other.target)) is head for other in traced.graph.nodes if other.op == "call_module")
        > 1
    ):
        raise EowError(f"the last linear layer, {node.target}, is used twice in the model: give the logits their own")
    graph_module = fx.GraphModule(traced.parts, traced.graph)
    x = probe(graph_module, (traced.parts[str(n.target)] for n in traced.graph.nodes if n.op == "call_module"), example)
    seen = look(graph_module, x[:SMALL]), look(graph_module, x)
    cuts = possible_cuts(traced, node, seen)
    wanted = PENULTIMATE if cut is None else cut
    if wanted not in cuts:
        raise EowError(no_cut(wanted, cuts, wanted in dict(whole.named_modules())))
    old = evaluated(whole, x)
    traced.parts[str(node.target)] = WidenedLinear(head)
    result = UpgradedModel(*split(traced, cuts[wanted], seen), str(node.target), wanted, one_name_each(cuts),
                           not x.is_floating_point())  # fmt: skip
    restore_modes(result, whole)
    compare(old, result, x)
    return result


def given(model: Any) -> nn.Module:
    """What is to be upgraded: a plain model, or a SplitModel of the pair."""
    if isinstance(model, UpgradedModel) or (isinstance(model, nn.Module) and has_widened(model)):
        raise EowError("the model has an unknown logit already: train it with eow.fit")
    if isinstance(model, tuple | list):
        if len(model) != 2 or not all(isinstance(part, nn.Module) for part in model):
            raise EowError("a model in parts is a pair (encoder, tail) of two nn.Modules: put all others into these")
        model = SplitModel(*model)
    if not isinstance(model, nn.Module):
        raise EowError(f"the model is a {type(model).__name__}: pass an nn.Module or a pair (encoder, tail) of them")
    if any(isinstance(each, nn.parameter.UninitializedParameter) for each in model.parameters()):
        raise EowError("the model has lazy layers that have seen no input yet: call model(x) once before upgrading")
    return model


def has_widened(model: nn.Module) -> bool:
    return any(isinstance(module, WidenedLinear) for module in model.modules())


def upgraded_pair(parts: SplitModel, cut: str | None, classes: int | None, example: Any) -> UpgradedModel:
    """Two parts as they are. No graph is read, so the parts may compute as they like."""
    if cut is not None and cut != parts.cut:
        if not parts.cuts:
            raise EowError(f"a pair (encoder, tail) is cut already: leave cut={cut!r} out")
        parts = parts.recut(cut)
    linears = [(path, module) for path, module in parts.tail.named_modules() if isinstance(module, nn.Linear)]
    if not linears:
        raise EowError("the tail has no nn.Linear to serve as head: let it end in the model's last linear layer")
    path, old_head = linears[-1]
    head = checked_head(old_head, path or "tail", parts, classes)
    if any(module is head for module in parts.encoder.modules()):
        raise EowError("encoder and tail share the last linear layer: give the logits a layer of their own")
    x = probe(parts, parts.modules(), example)
    latent = evaluated(parts.encoder, x)
    if not isinstance(latent, Tensor) or not latent.is_floating_point() or len(latent) != len(x):
        raise EowError(
            f"the encoder returns {described(latent)} for {len(x)} inputs: let it return one floating-point tensor "
            "with a row for each, for example the pooled output"
        )
    old, wide = evaluated(parts, x), WidenedLinear(head)
    tail: nn.Module = wide
    if path:
        parts.tail.set_submodule(path, wide)
        tail = parts.tail
    result = UpgradedModel(parts.encoder, tail, path, parts.cut, parts.cuts, not x.is_floating_point())
    result.training = parts.training
    said: list[Tensor] = []
    handle = wide.register_forward_hook(lambda module, args, output: said.append(output))
    try:
        compare(old, result, x)
        # A softmax after the head would pass the comparison: so low does the unknown start.
        if not said or not torch.equal(said[-1], evaluated(result, x)):
            raise EowError("the tail changes what its last linear layer says: let it return those logits as they are")
    except EowError:
        if path:
            parts.tail.set_submodule(path, head)
        raise
    finally:
        handle.remove()
    return result


def checked_head(head: Any, path: str, model: nn.Module, classes: int | None) -> nn.Linear:
    if type(head).forward is not nn.Linear.forward:
        raise EowError(
            f"{path} is a {type(head).__name__} with a forward of its own: end the model in a plain nn.Linear"
        )
    if head.out_features < 2:
        raise EowError(f"{path} has one output, a yes or no: give the model one output for each class, at least 2")
    if classes is not None and classes != head.out_features:
        raise EowError(
            f"classes is {classes}, but the model's last linear layer, {path}, has {head.out_features} outputs: "
            "leave classes out, or pass the model trained on them"
        )
    own = {id(parameter) for parameter in head.parameters()}
    for name, module in model.named_modules():
        if module is not head and any(id(each) in own for each in module.parameters(recurse=False)):
            raise EowError(
                f"{path} shares its weight with {name}, which widening would undo: give it a weight of its own first "
                f"({path}.weight = nn.Parameter({path}.weight.detach().clone()))"
            )
    return head


def find_head(traced: Traced, model: str) -> fx.Node:
    """The linear layer that makes the logits, or an error that says what stands in its place."""
    node = list(traced.graph.nodes)[-1].args[0]
    if not isinstance(node, fx.Node):
        raise EowError(f"the model returns a {type(node).__name__}: make its forward return the logits alone, {PAIR}")
    module = traced.parts.get(str(node.target)) if node.op == "call_module" else None
    while isinstance(module, nn.Identity | nn.Dropout) or (node.op == "call_method" and node.target == "contiguous"):
        node = node.args[0]  # type: ignore[assignment]
        assert isinstance(node, fx.Node)
        module = traced.parts.get(str(node.target)) if node.op == "call_module" else None
    if isinstance(module, nn.Linear):
        return node
    last = type(module).__name__ if module is not None else getattr(node.target, "__name__", str(node.target))
    where = f"{node.target} ({last})" if module is not None else last
    if last in SOFTMAXES:
        remedy = f"model.set_submodule({node.target!r}, torch.nn.Identity())" if module is not None else "remove it"
        raise EowError(
            f"{model} ends in {where}, so it gives no logits: {remedy}, and train with cross-entropy, which has the "
            "softmax in it"
        )
    if module is not None and any(isinstance(child, nn.Linear) for child in module.modules()):
        raise EowError(
            f"the model's last linear layer lies in {where}, which torch.fx cannot trace: simplify it, {PAIR}"
        )
    if not any(isinstance(part, nn.Linear) for part in traced.parts.values()):
        convolution = any(isinstance(part, nn.Conv1d | nn.Conv2d | nn.Conv3d) for part in traced.parts.values())
        instead = ": replace its convolution head by a pool, nn.Flatten and an nn.Linear" if convolution else (
            ": end it in an nn.Linear with one output for each class")  # fmt: skip
        raise EowError(f"{model} has no nn.Linear that makes its logits, it ends in {where}{instead}")
    raise EowError(
        f"{model} does not end in its last linear layer but in {where}: return that layer's logits as they are, {PAIR}"
    )


def no_cut(wanted: str, cuts: dict[str, fx.Node], is_module: bool) -> str:
    names = one_name_each(cuts)
    if len(names) > 40:
        names = [name for name in names if name.count(".") < 2]
    why = f"{wanted!r} is no place where one tensor carries everything" if is_module else f"there is no cut {wanted!r}"
    return f"{why}: choose one of {', '.join(names)}"


def one_name_each(cuts: dict[str, fx.Node]) -> list[str]:
    """Every place under the shortest of its names, and `penultimate`."""
    first = {node: name for name, node in reversed(cuts.items())}
    return [name for name, node in cuts.items() if first[node] == name or name == PENULTIMATE]


def probe(model: nn.Module, layers: Iterable[nn.Module], example: Any) -> Tensor:
    """A random batch that the model can take, of the example's shape or of one guessed from the first layer."""
    tensors = [*model.parameters(), *model.buffers()]
    device = tensors[0].device if tensors else torch.device("cpu")
    dtype = next((tensor.dtype for tensor in tensors if tensor.is_floating_point()), torch.get_default_dtype())
    generator = torch.Generator().manual_seed(0)
    if example is not None:
        x = torch.as_tensor(example) if isinstance(example, Tensor | np.ndarray) else None
        if x is None or x.dim() < 2 or not len(x):
            raise EowError(
                f"the example is {described(example)}: pass a batch of inputs, a tensor whose rows are samples"
            )
        if x.is_floating_point():
            x = torch.randn(LARGE, *x.shape[1:], generator=generator)
            return rows_out(model, x.to(device, dtype))
        return rows_out(model, x[torch.arange(LARGE) % len(x)].to(device))
    failure = "it has no layer that tells"
    for shape in shapes_for(layers):
        try:
            return rows_out(model, torch.randn(LARGE, *shape, generator=generator).to(device, dtype))
        except EowError as error:
            failure = str(error)
    raise EowError(f"the shape of the model's inputs cannot be guessed ({failure}): pass example=, a batch of inputs")


def shapes_for(layers: Iterable[nn.Module]) -> Iterator[tuple[int, ...]]:
    """Shapes of an input that the first layer with weights could take."""
    for layer in layers:
        if isinstance(layer, nn.Conv2d):
            yield from ((layer.in_channels, side, side) for side in SIDES)
        elif isinstance(layer, nn.Conv1d):
            yield from ((layer.in_channels, length) for length in LENGTHS)
        elif isinstance(layer, nn.Linear):
            yield (layer.in_features,)
        elif isinstance(layer, nn.BatchNorm1d):
            yield (layer.num_features,)
        elif isinstance(layer, nn.BatchNorm2d):
            yield from ((layer.num_features, side, side) for side in SIDES)
        elif isinstance(layer, nn.LayerNorm):
            yield tuple(layer.normalized_shape)
        elif not list(layer.parameters(recurse=False)):
            continue
        return


def rows_out(model: nn.Module, x: Tensor) -> Tensor:
    """`x`, if the model gives a row of logits for each of its rows."""
    try:
        logits = evaluated(model, x)
    except Exception as error:  # whatever somebody else's forward raises
        raise EowError(
            f"the model cannot take a batch of shape {tuple(x.shape)} ({str(error).splitlines()[0]}): pass example=, a "
            "batch of inputs as it wants them"
        ) from error
    if not isinstance(logits, Tensor):
        raise EowError(f"the model returns {described(logits)}: make its forward return the logits alone, {PAIR}")
    if logits.dim() != 2 or len(logits) != len(x):
        raise EowError(
            f"the model gives {described(logits)} for a batch of shape {tuple(x.shape)}: it must give one row of logits "
            "for each input"
        )
    return x


def evaluated(module: nn.Module, x: Tensor) -> Any:
    """The module's output in evaluation mode, the same random numbers each time; nothing of it changes."""
    with frozen_statistics(module), torch.no_grad(), torch.random.fork_rng([x.device] if x.is_cuda else []):
        torch.manual_seed(0)
        return module(x.clone())


def look(module: fx.GraphModule, x: Tensor) -> Seen:
    recorder = Recorder(module, len(x))
    with frozen_statistics(module), torch.no_grad(), torch.random.fork_rng([x.device] if x.is_cuda else []):
        recorder.run(x.clone())
    return recorder.seen


def compare(old: Tensor, model: UpgradedModel, x: Tensor) -> None:
    """The K logits as they were, and an unknown that nothing chooses."""
    new = evaluated(model, x)
    scale = 1 + old.float().abs().nan_to_num(0, 0, 0).max()
    same = new.shape == (*old.shape[:-1], old.shape[-1] + 1) and torch.allclose(
        new[:, :-1].float(), old.float(), rtol=0, atol=TOLERANCE.get(old.dtype, 1e-5) * float(scale), equal_nan=True
    )
    if not same:
        raise EowError(
            "cut in two, the model says something else than before: its forward must depend on nothing but its input, "
            f"and its last linear layer must make the logits; {PAIR}"
        )


def restore_modes(result: UpgradedModel, whole: nn.Module) -> None:
    """The containers that a graph makes for its modules are new: they get the modes of those they stand for."""
    modes = {path: module.training for path, module in whole.named_modules()}
    for part in (result.encoder, result.tail):
        for path, module in part.named_modules():
            module.training = modes.get(path, whole.training)
    result.training = whole.training


def described(value: Any) -> str:
    if isinstance(value, Tensor | np.ndarray):
        return f"a tensor of {value.dtype} and shape {tuple(value.shape)}"
    return f"a {type(value).__name__}"
