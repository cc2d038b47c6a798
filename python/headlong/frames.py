"""From what Python calls a table to what Headlong reads."""

from __future__ import annotations

import array
import os
import sys
from typing import Any

from ._headlong import Error, Frame

#: Types of numbers that are taken as their bytes: by numpy's kind, ours.
_KINDS = {"f": "f8", "i": "i8", "u": "i8"}


def inputs(data: Any) -> "list[Frame | str]":
    """The files and frames that an argument names: one, or a list of several."""
    if data is None:
        return []
    return [_input(one) for one in data] if isinstance(data, (list, tuple)) else [_input(data)]


def rows(data: Any) -> "list[Frame | str]":
    """The same of an argument that must name some."""
    found = inputs(data)
    if not found:
        raise TypeError(f"expected a data frame, a dictionary of columns or a path, found {data!r}")
    return found


def _input(data: Any) -> "Frame | str":
    if isinstance(data, (str, os.PathLike)):
        return os.fsdecode(data)
    return frame(data)


def frame(data: Any) -> Frame:
    """A data frame by Arrow's C stream interface, or a dictionary of columns."""
    if isinstance(data, Frame):
        return data
    if isinstance(data, dict):
        return Frame.of_columns({str(name): _column(name, values) for name, values in data.items()})
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(data, pandas.DataFrame):
        # An index is no column.
        data = data.reset_index(drop=True)
    collect = getattr(data, "collect", None)
    if collect is not None and not hasattr(data, "__arrow_c_stream__"):
        data = collect()
    polars = sys.modules.get("polars")
    if polars is not None and isinstance(data, polars.DataFrame):
        # Arrow's columns of nothing have no memory, and those of polars do.
        empty = {
            polars.Null: polars.String,
            polars.List(polars.Null): polars.List(polars.String),
        }
        types = {name: empty[dtype] for name, dtype in data.schema.items() if dtype in empty}
        data = data.cast(types) if types else data
    if not hasattr(data, "__arrow_c_stream__"):
        raise Error(
            f"expected a data frame with __arrow_c_stream__ (polars, pandas 2.2 or newer with "
            f"pyarrow, pyarrow, duckdb), a dictionary of columns or the path of a file, found "
            f"{type(data).__name__}"
        )
    try:
        return Frame.of(data)
    except Exception as error:
        column = _odd_column(data)
        if column is None and isinstance(error, Error):
            raise
        where = "" if column is None else f", column `{column}`"
        what = f"the data frame ({type(data).__name__}){where} cannot be read: {error}"
        raise Error(what) from error


def _odd_column(data: Any) -> "str | None":
    """The first column that cannot be read by itself."""
    names = list(getattr(data, "columns", ())) if hasattr(data, "select") else []
    names = list(getattr(data, "column_names", names))
    for name in names if len(names) <= 1000 else []:
        try:
            Frame.of(data.select([name]))
        except Exception:
            return str(name)
    return None


def of_matrix(matrix: Any) -> Frame:
    """The columns x0, x1, … of a two-dimensional numpy array."""
    columns = {f"x{at}": matrix[:, at] for at in range(matrix.shape[1])}
    return Frame.of_columns({name: _column(name, values) for name, values in columns.items()})


def _column(name: str, values: Any) -> Any:
    """A column as the extension takes it: a list, or a type and its bytes."""
    if isinstance(values, array.array) and values.typecode in "df":
        return ("f8" if values.typecode == "d" else "f4", values.tobytes())
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(values, numpy.ndarray):
        if values.dtype.kind == "M" and values.ndim == 1:
            texts = numpy.datetime_as_string(values, unit="s").tolist()
            return [None if text == "NaT" else text for text in texts]
        kind = _KINDS.get(values.dtype.kind)
        is_wide = values.dtype.kind == "u" and values.dtype.itemsize == 8
        if kind is not None and values.ndim == 1 and not is_wide:
            return (kind, numpy.ascontiguousarray(values, dtype=kind).tobytes())
        return values.tolist()
    try:
        return list(values)
    except TypeError:
        found = type(values).__name__
        raise Error(f"column `{name}`: expected a list of values, found {found}") from None
