"""A linear classifier that tells two sets of lines apart, with the scale that its values are read by."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.model_selection import cross_val_predict

from mascot.judges.scoring import Scale


class Probe:
    """Fits `model`, a scikit-learn classifier with its preprocessing, to tell `high` from `low`: texts, or rows of features.

    `scale` comes from lines that the model was not fitted on (at most five folds).
    """

    def __init__(self, model: Any, high: Sequence[Any], low: Sequence[Any]) -> None:
        lines, labels = [*high, *low], np.array([1] * len(high) + [0] * len(low))
        folds = min(5, len(high), len(low))
        held_out = cross_val_predict(model, lines, labels, cv=folds, method="decision_function")
        self._model = model.fit(lines, labels)
        self.scale = Scale(float(np.median(held_out[labels == 0])), float(np.median(held_out[labels == 1])))

    def values(self, lines: Sequence[Any]) -> list[float]:
        """The distance of each line from the boundary; positive on the side of `high`."""
        return self._model.decision_function(list(lines)).tolist()
