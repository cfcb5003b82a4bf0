"""A model taken apart without being read: the last linear layer, and the model with nothing in its place.

What no graph would keep, loops over the input or decisions about it, stays as it is written. There is one place to cut,
before that layer, and it must be the last thing that the model does.
"""

import copy as copying
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from eow.errors import EowError
from eow.models.comparing import (
    TOLERANCE,
    close,
    difference,
    in_training,
    largest,
    leaves,
    refuse_strange,
    same,
    unsteady,
)
from eow.models.probing import at_rest, described, evaluated, probe
from eow.models.refusing import PAIR, refuse_arguments, refuse_closures, with_closures
from eow.models.split import SplitModel
from eow.models.widening import checked_head, refuse_quantized
from eow.plain import first_line

LOUD = 1e4  # how large the logits are made to see whether all that is said comes out: half precision ends at 65504


class Logits(nn.Module):
    """A model that returns its logits by that name, beside a loss or hidden states, as one that returns them alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Any:
        returned = self.model(x)
        found = None
        if isinstance(returned, Mapping):  # as all that Hugging Face's models return is
            found = returned.get("logits")
        elif is_dataclass(returned):
            found = getattr(returned, "logits", None)
        return found if isinstance(found, Tensor) else returned


def without_head(whole: nn.Module, classes: int | None, example: Any, original: nn.Module) -> SplitModel:
    """The pair (the model without its last linear layer, that layer), which says what the model says, in evaluation and
    in training. All weights are the model's own; its modules are not touched. It may be a copy of the original."""
    linears = [(path, module) for path, module in whole.named_modules() if isinstance(module, nn.Linear)]
    if not linears:
        for path, module in whole.named_modules():
            refuse_quantized(path or "the model", module)
        raise EowError("the model has no nn.Linear: end it in one, whose outputs are the logits")
    refuse_arguments(whole)
    speaking: nn.Module = Logits(whole)
    x, logits = probe(speaking, whole.modules(), example)
    alone = isinstance(evaluated(whole, x), Tensor)
    speaking = whole if alone else speaking
    path, head = last_to_speak(speaking, linears, x)
    checked_head(head, path or "the model", whole, classes)
    body: nn.Module = nn.Identity()
    if path:
        refuse_closures(whole, PAIR)
        shared = {id(tensor): tensor for tensor in (*whole.parameters(), *whole.buffers())}
        try:
            body = copying.deepcopy(whole, shared)
        except (RuntimeError, TypeError) as error:
            raise EowError(f"the layers before {path} cannot be copied ({first_line(error)}), {PAIR}") from error
        for name, module in whole.named_modules(remove_duplicate=False):
            if module is head:
                body.set_submodule(name, nn.Identity().train(head.training))
    parts = SplitModel(body if alone else Logits(body), head)
    parts.training = whole.training
    refuse_other(speaking, parts, path, x, logits, original)
    return parts


def refuse_other(
    whole: nn.Module, parts: SplitModel, path: str, x: Tensor, logits: Tensor, original: nn.Module
) -> None:
    """An error where the last linear layer does not have the last word."""
    try:
        found = evaluated(parts, x)
        why = "" if alike(found, logits) else "what the two say together is something else"
        why = why or ("" if comes_out(whole, parts, logits, x) else "what that layer says does not come out as it is")
    except Exception as error:  # whatever somebody else's forward does with what is no longer a linear layer
        why = first_line(error)
    last = squashed(whole, parts.tail, logits, x) if why else None
    if last:
        raise EowError(
            f"{type(original).__name__} ends in a {last}, so it gives no logits: let it return what {path} says, and "
            "train with cross-entropy, which has the softmax in it"
        )
    if why:
        raise EowError(
            f"{path} cannot be taken off {type(original).__name__} ({why}): its forward must call that layer once, "
            f"return what it says, and not use it otherwise; {PAIR}"
        )
    if reads_head(parts, x):
        raise EowError(
            f"the model reads the weights of its last linear layer, {path}, beside calling it, which widening would "
            "undo: give what reads them weights of its own"
        )
    if with_closures(whole):  # every copy would be compiled anew
        return
    try:
        expected = in_training(whole, x)
    except Exception:  # whatever somebody else's modules raise
        return
    if not isinstance(expected.logits, Tensor):
        raise EowError(
            f"in training {type(original).__name__} returns {described(expected.logits)}: let it return the logits "
            f"alone there too, without auxiliary outputs, {PAIR}"
        )
    try:
        found = in_training(parts, x)
    except Exception as error:
        other: str | None = f"cannot compute what it did ({first_line(error)})"
    else:
        refuse_strange(found.strange, original, PAIR)
        other = difference(expected._replace(learning=[]), found, 0)
    if other and not unsteady(whole, x, expected):
        raise EowError(f"in training, without its last linear layer, {path}, the model {other}; {PAIR}")


def squashed(whole: nn.Module, head: nn.Module, logits: Tensor, x: Tensor) -> str | None:
    """What turns the last layer's logits into probabilities, if something does."""
    said: list[Tensor] = []
    handle = head.register_forward_hook(lambda module, args, output: said.append(output))
    try:
        evaluated(whole, x)
    finally:
        handle.remove()
    if not said or same(said[-1], logits):
        return None
    for name in ("softmax", "log_softmax"):
        if alike(getattr(said[-1], name)(-1), logits):
            return name
    return next((name for name in ("sigmoid", "logsigmoid") if alike(getattr(F, name)(said[-1]), logits)), None)


def comes_out(whole: nn.Module, parts: SplitModel, logits: Tensor, x: Tensor) -> bool:
    """Whether the model would return large logits of either sign too, as the last layer says them: a clamp after it,
    or a relu, may have had nothing to do so far."""
    factor, offset = -LOUD / largest(logits), torch.linspace(-LOUD, LOUD, logits.shape[-1]).to(logits)
    handle = parts.tail.register_forward_hook(lambda module, args, output: output * factor + offset)
    try:
        return alike(evaluated(whole, x), logits * factor + offset)
    finally:
        handle.remove()


def reads_head(parts: SplitModel, x: Tensor) -> bool:
    """Whether what comes before the last layer computes with its weights, which are in no other module. Of a copy, in
    which tensors with gradients may remain."""
    own = {id(each): each for each in parts.tail.parameters()}
    copied = copying.deepcopy(parts.encoder, dict(own))
    try:
        with at_rest(copied, x), torch.enable_grad():
            return not own.keys().isdisjoint(leaves(copied(x.clone())))
    except Exception:  # what somebody else's modules raise where gradients are kept: nobody can train them
        return False


def alike(found: Any, logits: Tensor) -> bool:
    tolerance = TOLERANCE.get(logits.dtype, 1e-5) * largest(logits)
    return isinstance(found, Tensor) and found.shape == logits.shape and close(found, logits, tolerance)


def last_to_speak(model: nn.Module, linears: list[tuple[str, nn.Linear]], x: Tensor) -> tuple[str, nn.Linear]:
    """The linear layer that says what the model returns, or else the last that is registered."""
    if len(linears) == 1:
        return linears[0]
    said: dict[str, Tensor] = {}
    handles = [
        layer.register_forward_hook(lambda module, args, output, path=path: said.update({path: output}))
        for path, layer in linears
    ]
    try:
        logits = evaluated(model, x)
    finally:
        for handle in handles:
            handle.remove()
    spoken = [(path, layer) for path, layer in reversed(linears) if path in said]
    itself = [each for each in spoken if said[each[0]] is logits]
    return next(iter(itself or [each for each in spoken if same(said[each[0]], logits)]), linears[-1])
