"""A classifier for scikit-learn, which has to be installed."""

from __future__ import annotations

from typing import Any, Mapping

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from .frames import frame, of_matrix
from .model import Model, train

__all__ = ["DLRMClassifier"]


class DLRMClassifier(ClassifierMixin, BaseEstimator):
    """A deep-learning recommendation model of two classes.

    ``X`` is a data frame (polars, pandas, pyarrow: anything with ``__arrow_c_stream__``), of which
    each column is taken as ``headlong train --auto`` takes it: as a number, an id, a list of ids;
    or a numpy array, whose columns are called x0, x1, …

    :param epochs: passes over the rows; chosen where it is not said, as are all others.
    :param batch_size: rows of a step.
    :param learning_rate: the learning rate.
    :param seeds: how many models are trained, of which predictions are the mean.
    :param seed: decides the initial weights.
    :param threads: threads that training takes; one per core where it is not said.
    :param settings: further arguments of :func:`headlong.train`, such as ``{"model.dim": 8}``.
    """

    def __init__(
        self,
        *,
        epochs: "float | None" = None,
        batch_size: "int | None" = None,
        learning_rate: "float | None" = None,
        seeds: "int | None" = None,
        seed: "int | None" = None,
        threads: "int | None" = None,
        settings: "Mapping[str, Any] | None" = None,
    ) -> None:
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.seeds = seeds
        self.seed = seed
        self.threads = threads
        self.settings = settings

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "DLRMClassifier":
        """Trains on rows and their classes, of which there have to be two.

        :param sample_weight: how much each row counts, 0 or more. A mean of 1 leaves the learning
            rate as it is.
        """
        if y is None:
            raise ValueError("DLRMClassifier requires y to be passed, but the target y is None")
        rows = self._rows(X, is_new=True)
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        self.classes_, of_row = np.unique(y, return_inverse=True)
        if len(self.classes_) != 2:
            raise ValueError(
                f"Only binary classification is supported. Expected two classes in y, found "
                f"{len(self.classes_)} class{'' if len(self.classes_) == 1 else 'es'}"
            )
        if len(rows) != len(y):
            raise ValueError(
                f"Found input variables with inconsistent numbers of samples: {len(rows)} rows of "
                f"X, {len(y)} of y"
            )
        label, weight = (_free(name, rows.names) for name in ("label", "weight"))
        names = ("epochs", "batch_size", "learning_rate", "seeds", "seed", "threads")
        settings = {**{name: getattr(self, name) for name in names}, **(self.settings or {})}
        labelled = rows.with_column(label, ("u1", of_row.astype(np.uint8).tobytes()))
        if sample_weight is not None:
            weights = _weights(sample_weight, len(rows))
            labelled = labelled.with_column(weight, ("f8", weights.tobytes()))
            settings["weight"] = weight
        self.model_: Model = train(data=labelled, label=label, progress=False, **settings)
        return self

    def predict_proba(self, X: Any) -> "np.ndarray[Any, Any]":
        """The probabilities of both classes, a row each."""
        check_is_fitted(self)
        second = self.model_.predict(self._rows(X)).astype(np.float64)
        return np.column_stack([1.0 - second, second])

    def predict(self, X: Any) -> "np.ndarray[Any, Any]":
        """The likelier class of each row."""
        is_second = self.predict_proba(X)[:, 1] >= 0.5
        return self.classes_[is_second.astype(int)]

    def _rows(self, X: Any, is_new: bool = False) -> Any:
        """The rows of ``X``; fitting learns their columns, which others must have, too."""
        # Some sparse arrays are dictionaries.
        is_dictionary = isinstance(X, dict) and not hasattr(X, "toarray")
        is_frame = hasattr(X, "__arrow_c_stream__") or is_dictionary
        rows = frame(X) if is_frame else of_matrix(_matrix(X))
        names = np.asarray(rows.names, dtype=object)
        if is_new:
            self.n_features_in_ = len(names)
            if is_frame:
                self.feature_names_in_ = names
            elif hasattr(self, "feature_names_in_"):
                del self.feature_names_in_
        elif not is_frame and len(names) != self.n_features_in_:
            raise ValueError(
                f"X has {len(names)} features, but DLRMClassifier is expecting "
                f"{self.n_features_in_} features as input"
            )
        elif not is_frame and hasattr(self, "feature_names_in_"):
            raise ValueError("X is an array without names, and DLRMClassifier was fitted with them")
        return rows

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = tags.input_tags.string = True
        tags.non_deterministic = False
        return tags


def _free(name: str, taken: "list[str]") -> str:
    """A name that no column has."""
    while name in taken:
        name += "_"
    return name


def _weights(sample_weight: Any, rows: int) -> "np.ndarray[Any, Any]":
    weights = np.asarray(sample_weight, dtype=np.float64)
    if weights.ndim == 0:
        weights = np.full(rows, weights)
    if weights.shape != (rows,):
        raise ValueError(
            f"sample_weight: expected a number for each of {rows} rows, found shape {weights.shape}"
        )
    bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(bad):
        found = weights[bad[0]]
        raise ValueError(
            f"sample_weight: row {bad[0]}: expected a finite number that is 0 or more, found "
            f"{found}"
        )
    if not weights.any():
        raise ValueError("sample_weight: all weights are zero: no row would count")
    return weights


def _matrix(X: Any) -> "np.ndarray[Any, Any]":
    if hasattr(X, "toarray"):
        raise TypeError("sparse data is not supported: use X.toarray(), or a data frame")
    matrix = np.asarray(X)
    if matrix.ndim != 2:
        raise ValueError(f"Expected 2D array, got {matrix.ndim}D array instead. Reshape your data")
    if np.iscomplexobj(matrix):
        raise ValueError("Complex data not supported")
    if 0 in matrix.shape:
        what = "sample" if matrix.shape[0] == 0 else "feature"
        raise ValueError(
            f"Found array with 0 {what}(s) (shape={matrix.shape}) while a minimum of 1 is required."
        )
    return matrix
