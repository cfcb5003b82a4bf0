"""eow: energy-based open-world softmax. Classifiers that can answer "unknown", and confidence that means what it says.

The public names are imported when they are first used: `import eow` costs next to nothing.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# name -> module that defines it
_NAMES = {
    "EOWClassifier": "eow.estimator",
    "EowError": "eow.errors",
    "OpenWorldLoss": "eow.objective",
    "SplitModel": "eow.models",
    "export_model": "eow.exporting",
    "fit": "eow.fitting",
    "load_run": "eow.runs",
    "predict": "eow.predicting",
    "resolve": "eow.config",
    "sample": "eow.sampling",
    "train": "eow.runs",
    "upgrade": "eow.models.surgery",
}
_MODULES = ("data", "evaluate", "methods", "metrics", "models", "predictions", "sampling", "theory")

__all__ = ["__version__", *_NAMES, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(import_module(_NAMES[name]), {"load_run": "load"}.get(name, name))
    if name in _MODULES:
        return import_module(f"eow.{name}")
    raise AttributeError(f"module 'eow' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
