"""DLRM and DLRM-DCNv2 training on the CPU with what a PyTorch user has; prints samples/s of the
whole iteration, one JSON line.

    python dlrm_peer.py --shape C1 --batch-size 2048 --tables torch|fbgemm --threads 1
        [--matmul-precision medium]
        [--dtype f32|bf16] [--compile] [--optimizer rowwise_adagrad]

Batches lie ready in memory before the clock starts; reading data is measured by parse_tsv.py.
"""
import argparse
import os
import time

arguments = argparse.ArgumentParser()
arguments.add_argument("--shape", default="C1")
arguments.add_argument("--batch-size", type=int, default=2048)
arguments.add_argument("--tables", choices=["torch", "fbgemm"], default="torch")
arguments.add_argument("--threads", type=int, default=1)
arguments.add_argument("--matmul-precision", default="highest")
arguments.add_argument(
    "--dtype", choices=["f32", "bf16"], default="f32", help="bf16 is torch.autocast's"
)
arguments.add_argument(
    "--compile", action="store_true", help="torch.compile for the dense part; tables stay outside"
)
arguments.add_argument(
    "--optimizer",
    default="",
    help="sgd, adagrad, rowwise_adagrad (fbgemm's tables); the shape's own",
)
arguments.add_argument("--seconds", type=float, default=5)
arguments.add_argument("--block", type=float, default=0.3)
a = arguments.parse_args()
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = str(a.threads)

import torch  # noqa: E402  (after the thread counts)
from torch import nn  # noqa: E402

import common  # noqa: E402

SHAPE = common.SHAPES[a.shape]
DIM, BATCH = SHAPE["dim"], a.batch_size
OPTIMIZER = a.optimizer or SHAPE["optimizer"]


def mlp(sizes, relu_last):
    layers = []
    for i in range(len(sizes) - 1):
        layers.append(nn.Linear(sizes[i], sizes[i + 1]))
        if relu_last or i < len(sizes) - 2:
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


class Dense(nn.Module):
    def __init__(self):
        super().__init__()
        num_features = common.NUM_TABLES + 1
        self.bottom = mlp([common.NUM_DENSE] + SHAPE["bottom"], True)
        if SHAPE["cross"]:
            (layers, rank), width = SHAPE["cross"], num_features * DIM
            self.v = nn.ModuleList(nn.Linear(width, rank, bias=False) for _ in range(layers))
            self.w = nn.ModuleList(nn.Linear(rank, width) for _ in range(layers))
        else:
            row, column = torch.tril_indices(num_features, num_features, -1)
            self.register_buffer("flat", row * num_features + column)
            width = DIM + len(row)
        self.top = mlp([width] + SHAPE["top"], False)

    def forward(self, dense, pooled):
        x = self.bottom(dense)
        features = torch.cat([x, *(vectors.to(x.dtype) for vectors in pooled)], 1)
        if SHAPE["cross"]:
            x = features
            for v, w in zip(self.v, self.w):
                x = features * w(v(x)) + x
            return self.top(x).squeeze(1)
        features = features.view(-1, common.NUM_TABLES + 1, DIM)
        products = (
            torch.bmm(features, features.transpose(1, 2)).flatten(1).index_select(1, self.flat)
        )
        return self.top(torch.cat([x, products], 1)).squeeze(1)


def fill(weight):
    """Uniform(-1/sqrt(rows), 1/sqrt(rows)) from a repeated random block: initialising is not what
    is measured."""
    block, flat = torch.rand(1 << 20) * 2 - 1, weight.view(-1)
    for i in range(0, flat.numel(), block.numel()):
        n = min(block.numel(), flat.numel() - i)
        torch.mul(block[:n], weight.shape[0] ** -0.5, out=flat[i:i + n])
    return weight


class TorchTables(nn.Module):
    def __init__(self):
        super().__init__()
        self.bags = nn.ModuleList(
            nn.EmbeddingBag(r, DIM, mode="sum", sparse=True, _weight=fill(torch.empty(r, DIM)))
            for r in SHAPE["rows"]
        )
        self.offsets = [torch.arange(BATCH) * hotness for hotness in SHAPE["hotness"]]

    def pack(self, ids):
        return [torch.from_numpy(i.copy()) for i in ids]

    def forward(self, ids):
        return [bag(i, offsets) for bag, i, offsets in zip(self.bags, ids, self.offsets)]


class FbgemmTables(nn.Module):
    def __init__(self):
        super().__init__()
        from fbgemm_gpu.split_embedding_configs import EmbOptimType
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
            ComputeDevice, EmbeddingLocation, SplitTableBatchedEmbeddingBagsCodegen)
        optimizer = {"sgd": EmbOptimType.EXACT_SGD, "adagrad": EmbOptimType.EXACT_ADAGRAD,
                     "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD}[OPTIMIZER]
        self.tables = SplitTableBatchedEmbeddingBagsCodegen(
            [(r, DIM, EmbeddingLocation.HOST, ComputeDevice.CPU) for r in SHAPE["rows"]],
            optimizer=optimizer, learning_rate=SHAPE["learning_rate"])
        for weight in self.tables.split_embedding_weights():
            fill(weight)
        lengths = torch.cat([torch.full((BATCH,), hotness) for hotness in SHAPE["hotness"]])
        self.offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])

    def pack(self, ids):
        return torch.cat([torch.from_numpy(i) for i in ids])

    def forward(self, ids):
        out = self.tables(ids, self.offsets)
        return [out]


def main():
    torch.set_num_threads(a.threads)
    torch.set_float32_matmul_precision(a.matmul_precision)
    torch.manual_seed(0)
    tables = TorchTables() if a.tables == "torch" else FbgemmTables()
    dense = Dense()
    data = [(torch.from_numpy(x), tables.pack(ids), torch.from_numpy(y))
            for x, ids, y in common.make_batches(SHAPE, BATCH, common.default_batches(BATCH))]
    make = torch.optim.SGD if OPTIMIZER == "sgd" else torch.optim.Adagrad
    optimizers = [make(dense.parameters(), lr=SHAPE["learning_rate"], fused=True)]
    if a.tables == "torch":
        assert OPTIMIZER != "rowwise_adagrad", "torch has no row-wise Adagrad"
        optimizers.append(make(tables.parameters(), lr=SHAPE["learning_rate"]))
    predict = torch.compile(dense) if a.compile else dense
    loss_of = nn.BCEWithLogitsLoss()
    step_index = 0

    def step():
        nonlocal step_index
        x, ids, y = data[step_index % len(data)]
        step_index += 1
        pooled = tables(ids)
        with torch.autocast("cpu", torch.bfloat16, enabled=a.dtype == "bf16"):
            logits = predict(x, pooled)
        loss = loss_of(logits.float(), y)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss.item()

    first = step()
    for _ in range(5):
        step()
    start = time.perf_counter()
    step()
    per_block = max(1, int(a.block / (time.perf_counter() - start)))
    samples, spent, last = [], 0.0, first
    while spent < a.seconds or len(samples) < 5:
        with common.Sample() as s:
            for _ in range(per_block):
                last = step()
        spent += s.wall
        samples.append((per_block * BATCH / s.wall, s.foreign))
    result = common.summarize(samples)
    common.emit(
        peer=a.tables,
        shape=a.shape,
        batch=BATCH,
        dtype=a.dtype,
        threads=a.threads,
        matmul_precision=a.matmul_precision,
        samples_per_s=result["median"],
        best=result["best"],
        gflops=result["median"] * common.training_flop(SHAPE) * 1e-9,
        foreign=result["foreign"],
        loss_first=first,
        loss_last=last,
    )


if __name__ == "__main__":
    main()
