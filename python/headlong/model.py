"""Training, and what it gives."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import warnings
import weakref
from array import array
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Iterable, Mapping

from . import _headlong
from ._headlong import Error
from .frames import inputs, rows

if TYPE_CHECKING:
    import numpy

#: An event of the JSON log (``docs/formats.md``): what a callback gets.
Event = Mapping[str, Any]

_NOT_HERE = {
    "auto": "leave `config` out",
    "config": "it is an argument of its own",
    "data": "it is an argument of its own",
    "dry_run": "`headlong train --auto --dry-run` prints the plan",
    "label": "it is an argument of its own",
    "log_json": "name a callback",
    "set": "name the key itself",
    "time": "`headlong train --time` prints the table",
    "valid": "it is an argument of its own",
}


def train(
    config: "str | os.PathLike[str] | Mapping[str, Any] | None" = None,
    data: Any = None,
    valid: Any = None,
    label: "str | None" = None,
    *,
    callbacks: "Callable[[Event], Any] | Iterable[Callable[[Event], Any]]" = (),
    progress: bool = True,
    **overrides: Any,
) -> "Model":
    """Trains a model, as the command ``headlong train`` does.

    Without ``config``, columns and settings are chosen as by ``headlong train --auto``, from the
    types and values of ``data``.

    :param config: a configuration file, or a dictionary of what such a file has.
    :param data: rows to train on: a data frame (polars, pandas, pyarrow, duckdb: anything with
        ``__arrow_c_stream__``; it is not copied), a dictionary of columns, the path of a file that
        the command reads, or a list of these.
    :param valid: rows to validate on, as ``data``. Without it, a tenth of ``data`` is held out.
    :param label: the column to predict, where its name does not tell.
    :param callbacks: called with each event of the JSON log, a dictionary; one that returns
        ``False`` ends training, and the model is what was learned until then.
    :param progress: whether a bar is shown where standard error is a terminal.
    :param overrides: flags of ``headlong train`` (``epochs=2``, ``checkpoint_dir="run"``,
        ``resume=True``) and keys of a configuration (``**{"model.dim": 8}``), over what is chosen.
    :raises Error: what is wrong, with the text of the command.
    :raises KeyboardInterrupt: after Ctrl-C, at the end of a step. With ``checkpoint_dir``, that
        step is saved there, and ``resume=True`` continues.
    """
    if data is None and config is None and "preset" not in overrides:
        raise Error("expected rows to train on: `data`")
    train_on, validate_on = inputs(data), inputs(valid)
    scratch = _Scratch()
    folder = overrides.pop("checkpoint_dir", None)
    if folder is None and overrides.get("resume"):
        raise Error("`resume` needs `checkpoint_dir`: the folder of the run that it continues")
    folder = Path(scratch.path, "model") if folder is None else Path(folder)
    output = overrides.pop("output_dir", None)
    output = Path(scratch.path, "run") if output is None else Path(output)
    words = ["--checkpoint-dir", os.fspath(folder), "--output-dir", os.fspath(output)]
    if config is not None:
        words += ["--config", _config_file(config, scratch.path)]
        if "weight" in overrides:
            overrides["data.columns.weight"] = overrides.pop("weight")
    events = _Events([callbacks] if callable(callbacks) else list(callbacks))
    words += _words(overrides)
    _headlong.train(words, train_on, validate_on, label, events.hear, progress)
    chosen = output / "auto.toml"
    settings = chosen.read_text() if config is None and chosen.exists() else None
    return Model(folder, _scratch=scratch, events=events.kept, settings=settings)


def load(directory: "str | os.PathLike[str]", which: str = "best") -> "Model":
    """The model in a folder of checkpoints: of :meth:`Model.save`, or of ``headlong train
    --checkpoint-dir``.

    :param which: of several checkpoints the one that was evaluated ``"best"``, or the ``"newest"``.
    """
    return Model(Path(directory), which=which)


class Model:
    """A trained model, or several of which predictions are the mean.

    Its weights are checkpoints in a folder: a temporary one, which goes with the object, or the one
    that ``checkpoint_dir`` or :func:`load` has named.
    """

    #: The events of training, except those of single steps; none of a model that was loaded.
    events: "list[Event]"
    #: What was chosen, with reasons, as a configuration file; none where nothing was.
    settings: "str | None"

    def __init__(
        self,
        directory: "str | os.PathLike[str]",
        *,
        events: "Iterable[Event]" = (),
        settings: "str | None" = None,
        which: str = "best",
        _scratch: Any = None,
    ) -> None:
        self._folder = Path(directory).absolute()
        self._newest = is_newest(which)
        self._scratch = _scratch
        self.events = list(events)
        self.settings = settings
        self.num_models = _headlong.models(self._folder, self._newest)

    @property
    def metrics(self) -> "dict[str, Any] | None":
        """The metrics on the rows that training validated on; none where there were none."""
        for event in reversed(self.events):
            for name in ("ensemble_eval", "last_eval"):
                if event.get(name) is not None:
                    return dict(event[name])
        return None

    def predict(self, data: Any) -> "numpy.ndarray[Any, Any]":
        """The probability of label 1 of every row, in their order: 32-bit floats in a numpy array,
        or in an ``array.array`` where there is no numpy. Columns that the model does not know, the
        label among them, are ignored."""
        found, said = _headlong.predict(self._folder, self._newest, rows(data))
        _warn(said)
        try:
            import numpy
        except ImportError:
            return array("f", bytes(found))  # type: ignore[return-value]
        return numpy.frombuffer(found, dtype=numpy.float32)

    def evaluate(self, data: Any) -> "dict[str, Any]":
        """The metrics of labelled rows, as ``headlong eval --json`` prints them."""
        found, said = _headlong.evaluate(self._folder, self._newest, rows(data))
        _warn(said)
        return dict(json.loads(found))

    def save(self, directory: "str | os.PathLike[str]") -> None:
        """Copies the model into a folder, which must be absent or empty: for :func:`load`, and for
        the commands ``headlong eval``, ``predict`` and ``checkpoint``."""
        directory = Path(directory)
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise FileExistsError(f"{directory} is there, and not an empty folder")
        to = directory = directory.absolute()
        if is_new := not directory.exists():
            # Under a name of its own until all of it is there. An empty folder may be a mount,
            # which nothing takes the place of.
            directory.parent.mkdir(parents=True, exist_ok=True)
            to = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
        try:
            shutil.copytree(self._folder, to, dirs_exist_ok=True)
            if is_new:
                to.replace(directory)
        except BaseException:
            shutil.rmtree(to, ignore_errors=True)
            raise

    def __repr__(self) -> str:
        count = "1 model" if self.num_models == 1 else f"{self.num_models} models"
        auc = (self.metrics or {}).get("auc")
        return f"<headlong.Model: {count}{'' if auc is None else f', AUC {auc:.5f}'}>"

    def __getstate__(self) -> "dict[str, Any]":
        paths = [path for path in sorted(self._folder.rglob("*")) if path.is_file()]
        if not paths:
            raise FileNotFoundError(f"the model's folder, {self._folder}, is not there any more")
        files = {path.relative_to(self._folder).as_posix(): path.read_bytes() for path in paths}
        which = "newest" if self._newest else "best"
        return {"files": files, "events": self.events, "settings": self.settings, "which": which}

    def __setstate__(self, state: "dict[str, Any]") -> None:
        scratch = _Scratch()
        folder = Path(scratch.path, "model")
        for name, content in state["files"].items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        state = {name: state[name] for name in ("events", "settings", "which") if name in state}
        loaded = Model(folder, _scratch=scratch, **state)
        self.__dict__.update(loaded.__dict__)


class _Scratch:
    """A private folder that goes with the object, or at the end of the program."""

    def __init__(self) -> None:
        self.path = tempfile.mkdtemp(prefix="headlong-")
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


class _Events:
    """Hands events to callbacks, keeps those of more than a step, and warns."""

    def __init__(self, callbacks: "list[Callable[[Event], Any]]") -> None:
        self.callbacks = callbacks
        self.kept: "list[Event]" = []

    def hear(self, line: str) -> bool:
        event = json.loads(line)
        if event["event"] != "step":
            self.kept.append(event)
        if event["event"] == "warning":
            _warn([_headlong.in_python(event["message"])])
        # All are called, also after one that wants to stop; what one does to its event is its own.
        return all([callback(json.loads(line)) is not False for callback in self.callbacks])


def _warn(messages: "list[str]") -> None:
    """Warns the line that has called this package."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__package__") == __package__:
        level, frame = level + 1, frame.f_back
    for message in messages:
        warnings.warn(message, stacklevel=level)


def is_newest(which: str) -> bool:
    """Whether the newest checkpoint is meant, not the best one."""
    if which not in ("best", "newest"):
        raise ValueError(f"which: expected 'best' or 'newest', found {which!r}")
    return which == "newest"


def _config_file(config: Any, folder: str) -> str:
    if isinstance(config, (str, os.PathLike)):
        return os.fsdecode(config)
    if not isinstance(config, Mapping):
        found = type(config).__name__
        raise TypeError(f"config: expected a path or a dictionary, found {found}; is it `data=`?")
    file = Path(folder, "config.toml")
    file.write_text(_headlong.to_toml(json.dumps(config)))
    return os.fspath(file)


def _words(overrides: "Mapping[str, Any]") -> "list[str]":
    """Overrides as flags, and as keys where there is no such flag."""
    flags = set(_headlong.flags())
    words = []
    for name, value in overrides.items():
        if name in _NOT_HERE:
            raise Error(f"`{name}`: {_NOT_HERE[name]}")
        flag = name.replace("_", "-")
        if value is None:
            continue
        if flag not in flags:
            words += ["--set", f"{name}={json.dumps(value)}"]
        elif value is True:
            words.append(f"--{flag}")
        elif value is not False:
            # So that a negative number is no flag.
            words.append(f"--{flag}={value}")
    return words
