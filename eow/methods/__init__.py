"""The methods, by name, in one plain dict.

the paper's    eow.py, on onset.py (where its term begins), fence.py (what is far outside) and profile.py (its chains
               for the report); controls.py: eow without Langevin steps; shrink.py: a control from no paper
its baselines  vanilla.py, label_smoothing.py, mixup.py, mc_dropout.py, temperature.py, trust_score.py, jem.py,
               ova_dm.py, dble.py; ensemble.py is ours to compare with
shared         base.py (what a method is), holdout.py (fitting on held-out data), distances.py
"""

from eow.errors import EowError
from eow.methods.base import Method, Prediction
from eow.methods.controls import VOS, FeatureNegatives, MixedNegatives, NoiseNegatives
from eow.methods.dble import DBLE
from eow.methods.ensemble import Ensemble
from eow.methods.eow import EOW
from eow.methods.jem import JEM
from eow.methods.label_smoothing import LabelSmoothing
from eow.methods.mc_dropout import MCDropout
from eow.methods.mixup import Mixup
from eow.methods.ova_dm import OvADM
from eow.methods.shrink import Shrink
from eow.methods.temperature import Temperature, fit_temperature, fit_temperature_and_bias
from eow.methods.trust_score import TrustScore
from eow.methods.vanilla import Vanilla
from eow.plain import near

METHODS: dict[str, type[Method]] = {
    "vanilla": Vanilla,
    "label_smoothing": LabelSmoothing,
    "mixup": Mixup,
    "mc_dropout": MCDropout,
    "ensemble": Ensemble,
    "temperature": Temperature,
    "trust_score": TrustScore,
    "jem": JEM,
    "ova_dm": OvADM,
    "dble": DBLE,
    "eow": EOW,
    "shrink": Shrink,
    "feature_negatives": FeatureNegatives,
    "noise_negatives": NoiseNegatives,
    "mixed_negatives": MixedNegatives,
    "vos": VOS,
}


def method_named(name: str) -> type[Method]:
    if name not in METHODS:
        raise EowError(f"there is no method {name!r}: {near(name, METHODS)}choose one of {', '.join(METHODS)}")
    return METHODS[name]


__all__ = ["METHODS", "Method", "Prediction", "fit_temperature", "fit_temperature_and_bias", "method_named"]
