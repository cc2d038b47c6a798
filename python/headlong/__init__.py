"""Trains deep-learning recommendation models (DLRM) on data frames and click logs.

>>> import headlong
>>> model = headlong.train(data=clicks, label="clicked")
>>> model.predict(new_clicks)

Everything is decided as the command ``headlong train --auto`` decides it; ``headlong.sklearn`` has
a classifier for scikit-learn, ``headlong.torch`` modules of PyTorch.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from ._headlong import Error, __version__

if _TYPE_CHECKING:
    from .model import Model, load, train

__all__ = ["Error", "Model", "__version__", "load", "train"]


def __getattr__(name: str) -> object:
    # What they import takes ten times as long as the extension, and the command does without.
    if name in ("Model", "load", "train"):
        from . import model

        globals()[name] = getattr(model, name)
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> "list[str]":
    return sorted({*globals(), *__all__})
