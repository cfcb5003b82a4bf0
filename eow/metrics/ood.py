"""Telling known samples from unknown ones by one score."""

from typing import Any

import numpy as np

from eow.metrics.checks import as_array, finite


def auroc(known: Any, unknown: Any) -> float:
    """P(known > unknown) + ½ P(known = unknown), over all pairs of a known and an unknown sample.

    The scores of KNOWN samples should be the higher ones, as confidence is; of the probability of "unknown", give the
    negative. The positive class is "known", 0.5 is chance, and swapping the two gives one minus the value.
    """
    from sklearn.metrics import roc_auc_score  # takes a second to import, and the other metrics do without

    high, low = as_array(known, "known", 1), as_array(unknown, "unknown", 1)
    finite(high, "known")
    finite(low, "unknown")
    is_known = np.repeat([True, False], [len(high), len(low)])
    return float(roc_auc_score(is_known, np.concatenate([high, low])))
