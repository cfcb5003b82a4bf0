"""eow: energy-based open-world softmax. Classifiers that can answer "unknown", and confidence that means what it says.

The public names are imported when they are first used: `import eow` costs next to nothing. What lies where:

    settings        config.py has them all; assignments.py reads them, typed.py checks them, recipes.py presets them
    a run           runs.py trains one into a folder (runfolder.py), opening.py opens it
    tables          estimator.py (EOWClassifier)
    predictions     predictions.py keeps them on disk, importing.py those of other models (foreign.py, identity.py),
                    openworld.py shifts their unknown; of them evaluate.py and robustness.py take figures, compare.py
                    differences, certify.py a threshold
    deployment      answering.py is `eow predict`, deployed.py runs an .onnx file without torch
    underneath      storage.py and mapping.py (files), seeds.py, switches.py and threads.py (torch's global state),
                    errors.py, plain.py and console.py (what a person reads)
    besides         demo.py, theory.py (the paper's, on a finite grid) and theorydrawing.py, its picture

    __main__.py is `python -m eow`. Each package has such a list:

    data/ models/ methods/ sampling/ training/   what a run is made of
    own/                                         eow.fit, eow.OpenWorldLoss and eow.predict, for a model of yours
    tabular/ export/ metrics/                    behind EOWClassifier, `eow export` and every figure
    bench/ report/ cli/                          grids of runs, the page about them, the command line
    play/ paper/                                 the page to draw on, the paper's tables
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# name -> module that defines it
_NAMES = {
    "EOWClassifier": "eow.estimator",
    "EowError": "eow.errors",
    "OpenWorldLoss": "eow.own.loss",
    "SplitModel": "eow.models",
    "export_model": "eow.export.model",
    "fit": "eow.own.fit",
    "fit_temperature": "eow.methods.temperature",
    "import_predictions": "eow.importing",
    "load_run": "eow.runs",
    "predict": "eow.own.predict",
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
