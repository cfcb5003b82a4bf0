"""A model taken apart without being read: the last linear layer, and the model with nothing in its place.

What no graph would keep, loops over the input or decisions about it, stays as it is written. There is one place to cut,
before that layer, and it must be the last thing that the model does.
"""

import copy as copying
from typing import Any

from torch import Tensor, nn

from eow.errors import EowError
from eow.models.comparing import TOLERANCE, Said, close, difference, largest, said_in_training, same, unsteady
from eow.models.probing import evaluated, probe
from eow.models.refusing import PAIR
from eow.models.split import SplitModel
from eow.models.widening import checked_head, refuse_quantized
from eow.plain import first_line


def without_head(whole: nn.Module, classes: int | None, example: Any) -> SplitModel:
    """The pair (the model without its last linear layer, that layer), which says what the model says, in evaluation and
    in training. All weights are the model's own; its modules are not touched."""
    linears = [(path, module) for path, module in whole.named_modules() if isinstance(module, nn.Linear)]
    if not linears:
        for path, module in whole.named_modules():
            refuse_quantized(path or "the model", module)
        raise EowError("the model has no nn.Linear: end it in one, whose outputs are the logits")
    x = probe(whole, whole.modules(), example)
    path, head = last_to_speak(whole, linears, x)
    checked_head(head, path or "the model", whole, classes)
    body: nn.Module = nn.Identity()
    if path:
        shared = {id(tensor): tensor for tensor in (*whole.parameters(), *whole.buffers())}
        body = copying.deepcopy(whole, shared)
        body.set_submodule(path, nn.Identity())
    parts = SplitModel(body, head)
    parts.training = whole.training
    refuse_other(whole, parts, path, x)
    return parts


def refuse_other(whole: nn.Module, parts: SplitModel, path: str, x: Tensor) -> None:
    """An error where the last linear layer does not have the last word."""
    logits = evaluated(whole, x)
    try:
        found = evaluated(parts, x)
        why = "" if alike(found, logits) else "what the two say together is something else"
    except Exception as error:  # whatever somebody else's forward does with what is no linear layer any more
        why = first_line(error)
    if why:
        raise EowError(
            f"{path} cannot be taken off {type(whole).__name__} ({why}): its forward must call that layer once, "
            f"return what it says, and not use it otherwise; {PAIR}"
        )
    expected = Said(said_in_training(whole, x, None), [], set())
    if expected.logits is None:
        return
    trained = Said(said_in_training(parts, x, None), [], set())
    if (other := difference(expected, trained, 0)) and not unsteady(whole, x, expected):
        raise EowError(f"in training, without its last linear layer, {path}, the model {other}; {PAIR}")


def alike(found: Any, logits: Tensor) -> bool:
    tolerance = TOLERANCE.get(logits.dtype, 1e-5) * largest(logits)
    return isinstance(found, Tensor) and found.shape == logits.shape and close(found, logits, tolerance)


def last_to_speak(model: nn.Module, linears: list[tuple[str, nn.Linear]], x: Tensor) -> tuple[str, nn.Linear]:
    """The linear layer that says what the model returns, or else the last that is registered."""
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
