"""The methods, by name, in one plain dict."""

from eow.errors import EowError
from eow.methods.base import Method, Prediction
from eow.methods.eow import EOW
from eow.methods.vanilla import Vanilla

METHODS: dict[str, type[Method]] = {"vanilla": Vanilla, "eow": EOW}


def method_named(name: str) -> type[Method]:
    if name not in METHODS:
        raise EowError(f"there is no method {name!r}: choose one of {', '.join(METHODS)}")
    return METHODS[name]


__all__ = ["METHODS", "Method", "Prediction", "method_named"]
