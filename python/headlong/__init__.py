"""Trains deep-learning recommendation models (DLRM) on data frames and click logs.

>>> import headlong
>>> model = headlong.train(data=clicks, label="clicked")
>>> model.predict(new_clicks)

Everything is decided as the command ``headlong train --auto`` decides it; ``headlong.sklearn`` has
a classifier for scikit-learn.
"""

from ._headlong import Error, __version__
from .model import Model, load, train

__all__ = ["Error", "Model", "__version__", "load", "train"]
