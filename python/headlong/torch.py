"""Models as modules of PyTorch (1.13 or newer), which has to be installed.

>>> import headlong.torch
>>> module = headlong.torch.load("model")
>>> module.predict(new_clicks)
"""

from __future__ import annotations

import json
import os
import tempfile
from typing import Any, Iterator, Sequence

import torch
from torch import Tensor, nn

from . import _headlong
from ._headlong import Error
from .frames import rows as _files
from .model import is_newest

__all__ = ["DLRM", "Ensemble", "HashedTable", "load"]

#: What fills lists of rows up.
PADDING = -1


def load(source: "str | os.PathLike[str]", which: str = "best") -> "DLRM | Ensemble":
    """The model in a folder of checkpoints, or in a file of ``headlong checkpoint export --format
    torch``: a :class:`DLRM`, or of several models an :class:`Ensemble`.

    Its parameters are ordinary ones of 32-bit floats in memory, to be trained further, saved by
    ``state_dict`` and moved to a device.

    :param which: of several checkpoints the one that was evaluated ``"best"``, or the ``"newest"``.
    """
    if not os.path.isdir(source):
        return _load_file(os.fspath(source))
    with tempfile.TemporaryDirectory(prefix="headlong-") as scratch:
        file = os.path.join(scratch, "model.safetensors")
        _headlong.export_torch(os.path.abspath(source), is_newest(which), file)
        return _load_file(file)


class _Predictor(nn.Module):
    """What takes columns: as tensors to its network, or as they are in the data."""

    _columns: "_Columns"

    def inputs(self, data: Any) -> "tuple[Tensor, ...]":
        """What :meth:`forward` takes, of rows as :meth:`headlong.Model.predict` takes them: a data
        frame, a dictionary of columns, a file, or a list of these; their label is ignored."""
        rows = self._columns.read(data)
        return rows.part(0, rows.count)

    def predict(self, data: Any, batch_size: int = 8192) -> Tensor:
        """The probability of label 1 of every row, in their order: 32-bit floats, on the
        processor."""
        rows = self._columns.read(data)
        device = next(self.parameters()).device
        found = [torch.zeros(0)]
        with torch.no_grad():
            for part in rows.parts(batch_size):
                logits = self(*(tensor.to(device) for tensor in part))
                found.append(logits.cpu().double().sigmoid().float())
        return torch.cat(found)


class DLRM(_Predictor):
    """The network of one model. Its parameters have the names of the original DLRM: ``emb_l``,
    ``bot_l``, ``top_l``, and ``cross`` of a cross network.

    :func:`load` makes one; ``forward`` gives logits.
    """

    def __init__(
        self,
        network: "dict[str, Any]",
        hashed: "Sequence[dict[str, Any] | None]",
        weights: "dict[str, Tensor]",
        columns: "_Columns",
    ) -> None:
        super().__init__()
        self._columns = columns
        self.interaction: str = network["interaction"]
        self.dim: int = network["dim"]
        self.means = [table["pooling"] == "mean" for table in network["tables"]]
        self.emb_l = nn.ModuleList()
        for number, of_ids in enumerate(hashed):
            name = f"emb_l.{number}."
            if of_ids is None:
                weight = weights[name + "weight"]
                table: nn.Module = nn.EmbeddingBag.from_pretrained(weight, False, mode="sum")
            else:
                entry = weights[name + "entry"]
                seed, bound = int(of_ids["seed"]), of_ids["bound"]
                table = HashedTable(entry, of_ids["head"], seed, bound)
            self.emb_l.append(table)
        self.bot_l = _stack(weights, "bot_l", ends_with_relu=True)
        self.cross = nn.ModuleList()
        while f"cross.{len(self.cross)}.v.weight" in weights:
            self.cross.append(_CrossLayer(weights, f"cross.{len(self.cross)}"))
        self.top_l = _stack(weights, "top_l", ends_with_relu=False)

    def forward(self, dense: Tensor, *rows: Tensor) -> Tensor:
        """The logit of every sample.

        :param dense: numbers as the bottom network takes them, ``[samples, columns]``.
        :param rows: of each table, the rows of its samples: ``[samples]``, or, of lists,
            ``[samples, most]``, filled up with -1. Of a table of raw ids these are the ids.
        """
        if len(rows) != len(self.emb_l):
            raise ValueError(f"expected rows of {len(self.emb_l)} tables, found {len(rows)}")
        samples = len(rows[0]) if rows else len(dense)
        vectors = [self.bot_l(dense) if len(self.bot_l) else dense.new_zeros(samples, self.dim)]
        for table, of_table, is_mean in zip(self.emb_l, rows, self.means):
            vectors.append(_pooled(table, of_table, is_mean))
        if self.interaction == "dot":
            stack = torch.stack(vectors, 1)
            products = torch.bmm(stack, stack.transpose(1, 2))
            below = torch.tril_indices(len(vectors), len(vectors), -1, device=stack.device)
            x = torch.cat([vectors[0], products[:, below[0], below[1]]], 1)
        else:
            x = first = torch.cat(vectors, 1)
            for layer in self.cross:
                x = layer(first, x)
        return self.top_l(x).squeeze(1)


class Ensemble(_Predictor):
    """Several models, ``models``, of which predictions are the mean of the probabilities."""

    def __init__(self, models: "Sequence[DLRM]") -> None:
        super().__init__()
        self.models = nn.ModuleList(models)
        self._columns = models[0]._columns

    def forward(self, dense: Tensor, *rows: Tensor) -> Tensor:
        """The logit of the mean of the models' probabilities; see :meth:`DLRM.forward`."""
        logits = torch.stack([model(dense, *rows) for model in self.models]).double()
        of_one, of_none = logits.sigmoid().sum(0), (-logits).sigmoid().sum(0)
        return (of_one.log() - of_none.log()).float()


class HashedTable(nn.Module):
    """A table of kind ``hashed``: rows of raw ids. An id without a row reads its initial value, a
    function of the model's seed and the id."""

    ids: Tensor

    def __init__(self, entry: Tensor, head: int, seed: int, bound: float) -> None:
        super().__init__()
        entry = entry[entry[:, 3] != 0]
        parts = entry[:, :3].long()
        ids, order = (parts[:, 0] | parts[:, 1] << 22 | parts[:, 2] << 44).sort()
        #: The ids that have rows, rising.
        self.register_buffer("ids", ids)
        self.weight = nn.Parameter(entry[order, head:].contiguous())
        self.seed, self.bound = seed, bound

    def forward(self, ids: Tensor) -> Tensor:
        """The vectors of ids of any shape."""
        vectors = self._initial(ids)
        if len(self.ids) == 0:
            return vectors
        place = torch.searchsorted(self.ids, ids.contiguous()).clamp(max=len(self.ids) - 1)
        known = (self.ids[place] == ids).unsqueeze(-1)
        return torch.where(known, self.weight[place], vectors)

    def _initial(self, ids: Tensor) -> Tensor:
        """Uniform numbers of a stream for each id: Philox 4x32 of ten rounds (Salmon et al.)."""
        dim, low = self.weight.shape[1], 0xFFFFFFFF
        groups = torch.arange((dim + 3) // 4, device=ids.device)
        stream = ids.unsqueeze(-1)
        words = torch.broadcast_tensors(
            groups, torch.zeros_like(groups), stream & low, stream >> 32 & low
        )
        first, second, third, fourth = words
        keys = (self.seed & low, self.seed >> 32)
        for _ in range(10):
            # Products of 64 bits, which wrap around.
            one, two = first * 0xD2511F53, third * 0xCD9E8D57
            first, second = (two >> 32 & low) ^ second ^ keys[0], two & low
            third, fourth = (one >> 32 & low) ^ fourth ^ keys[1], one & low
            keys = (keys[0] + 0x9E3779B9 & low, keys[1] + 0xBB67AE85 & low)
        bits = torch.stack([first, second, third, fourth], -1).flatten(-2)[..., :dim]
        unit = (bits >> 8).to(self.weight.dtype) * 2.0**-24
        return unit * (2 * self.bound) - self.bound


class _CrossLayer(nn.Module):
    """``first * (W(Vx) + b) + x``."""

    def __init__(self, weights: "dict[str, Tensor]", name: str) -> None:
        super().__init__()
        self.v = _linear(weights[f"{name}.v.weight"], None)
        self.w = _linear(weights[f"{name}.w.weight"], weights[f"{name}.w.bias"])

    def forward(self, first: Tensor, x: Tensor) -> Tensor:
        return first * self.w(self.v(x)) + x


def _pooled(table: nn.Module, rows: Tensor, is_mean: bool) -> Tensor:
    """A vector for each sample."""
    if isinstance(table, HashedTable):
        if rows.dim() == 1:
            return table(rows)
        mask = rows.ne(PADDING)
        total = (table(rows) * mask.unsqueeze(-1)).sum(1)
    elif rows.dim() == 1:
        return table(rows.unsqueeze(1))
    else:
        mask = rows.ne(PADDING)
        weights = mask.to(table.weight.dtype)
        total = table(rows * mask, per_sample_weights=weights)
    return total / mask.sum(1, keepdim=True).clamp(min=1) if is_mean else total


def _linear(weight: Tensor, bias: "Tensor | None") -> nn.Linear:
    outputs, inputs = weight.shape
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, inputs, outputs, bias=bias is not None)
    layer.weight = nn.Parameter(weight)
    if bias is not None:
        layer.bias = nn.Parameter(bias)
    return layer


def _stack(weights: "dict[str, Tensor]", name: str, ends_with_relu: bool) -> nn.Sequential:
    """Layers with a ReLU behind each, which counts as a layer."""
    layers: "list[nn.Module]" = []
    while f"{name}.{len(layers)}.weight" in weights:
        weight = weights[f"{name}.{len(layers)}.weight"]
        bias = weights[f"{name}.{len(layers)}.bias"]
        layers += [_linear(weight, bias), nn.ReLU()]
    return nn.Sequential(*(layers if ends_with_relu else layers[:-1]))


class _Rows:
    """Rows of data, of which parts become tensors."""

    def __init__(self, count: int, dense: bytearray, tables: "list[Any]") -> None:
        self.count = count
        self.dense = _numbers(dense, torch.float32).reshape(count, -1)
        if count == 0:
            self.dense = self.dense.reshape(0, 0)
        self.tables = []
        for rows, counts in tables:
            ends = None if counts is None else _numbers(counts, torch.int64).cumsum(0)
            self.tables.append((_numbers(rows, torch.int64), ends))

    def parts(self, size: int) -> "Iterator[tuple[Tensor, ...]]":
        return (
            self.part(start, min(start + size, self.count)) for start in range(0, self.count, size)
        )

    def part(self, start: int, end: int) -> "tuple[Tensor, ...]":
        tables = (self._of_table(rows, ends, start, end) for rows, ends in self.tables)
        return (self.dense[start:end], *tables)

    @staticmethod
    def _of_table(rows: Tensor, ends: "Tensor | None", start: int, end: int) -> Tensor:
        if ends is None:
            return rows[start:end]
        before = ends[start - 1 : start] if start else ends.new_zeros(1)
        offsets = torch.cat([before, ends[start:end]])
        counts = offsets[1:] - offsets[:-1]
        most = max(1, int(counts.max())) if end > start else 1
        padded = rows.new_full((end - start, most), PADDING)
        there = torch.arange(most) < counts.unsqueeze(1)
        padded[there] = rows[int(offsets[0]) : int(offsets[-1])]
        return padded


class _Columns:
    """What makes rows of columns: files of the checkpoint, so that it can be pickled."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts
        self.reader: "_headlong.Columns | None" = None

    def read(self, data: Any) -> _Rows:
        if self.reader is None:
            self.reader = _headlong.Columns(*self.parts)
        return _Rows(*self.reader.read(_files(data)))

    def __reduce__(self) -> Any:
        return (_Columns, self.parts)


def _numbers(data: bytearray, dtype: torch.dtype) -> Tensor:
    return torch.frombuffer(data, dtype=dtype) if data else torch.zeros(0, dtype=dtype)


def _load_file(file: str) -> "DLRM | Ensemble":
    metadata, tensors, blobs = _read(file)
    network = json.loads(metadata.get("headlong.model", "null"))
    if not isinstance(network, dict) or network.get("version") != 1:
        raise Error(
            f"{file}: expected a file of `headlong checkpoint export --format torch` of version 1, "
            f"or a folder of checkpoints"
        )
    config = bytes(blobs["headlong.config"]).decode()
    of_ids = [blobs.get(name) for name in ("headlong.dictionary", "headlong.ids")]
    table_rows = [table["rows"] for table in network["tables"]]
    columns = _Columns(config, table_rows, *(None if one is None else bytes(one) for one in of_ids))
    if len(network["hashed"]) == 1:
        return DLRM(network, network["hashed"][0], tensors, columns)
    models = []
    for number, hashed in enumerate(network["hashed"]):
        prefix = f"models.{number}."
        own = {name[len(prefix) :]: one for name, one in tensors.items() if name.startswith(prefix)}
        models.append(DLRM(network, hashed, own, columns))
    return Ensemble(models)


def _read(file: str) -> "tuple[dict[str, str], dict[str, Tensor], dict[str, bytearray]]":
    """Metadata, tensors of floats, and bytes of a safetensors file."""
    damaged = Error(f"{file}: not a whole safetensors file")
    tensors, blobs = {}, {}
    size = os.path.getsize(file)
    with open(file, "rb") as data:
        head = data.read(8)
        start = 8 + int.from_bytes(head, "little")
        if len(head) < 8 or start > size:
            raise damaged
        try:
            header = json.loads(data.read(start - 8))
            metadata = header.pop("__metadata__", {})
            places = {
                name: (about["dtype"], about["shape"], *about["data_offsets"])
                for name, about in header.items()
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise damaged from error
        for name, (dtype, shape, begin, end) in places.items():
            if not 0 <= begin <= end <= size - start:
                raise damaged
            content = bytearray(end - begin)
            data.seek(start + begin)
            data.readinto(content)
            if dtype == "F32":
                tensors[name] = _numbers(content, torch.float32).reshape(shape)
            else:
                blobs[name] = content
    return metadata, tensors, blobs
