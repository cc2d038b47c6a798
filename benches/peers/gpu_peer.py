"""DLRM training in plain PyTorch on one GPU; prints samples/s of the whole iteration, one JSON
line.

    python gpu_peer.py --shape C1 --row-cap 40000000 --batch-size 65536 --dtype bf16
    # A few small steps on the CPU: shows that the script runs, and that it computes DLRM.
    python gpu_peer.py --smoke

Written for PyTorch 2.11 with CUDA 13. The same shapes, data and steps as `headlong bench
iteration`: C1 with --row-cap 40000000 is the model of the preset `criteo-terabyte-dlrm`. What a
user can ask of PyTorch itself is asked: the dense network goes through torch.compile, matrix
products are bf16 by autocast with f32 weights, and the whole step is captured as one CUDA graph and
replayed.

Tables, by --tables:
  index_add  all rows in one matrix; vectors by index_select, and the step of SGD as one index_add_
             of the vectors' gradients. SGD is linear, so equal rows need no merging first. Has
             static shapes, so it is part of the graph: the fastest in plain PyTorch.
  bags       EmbeddingBag(sparse=True) and torch.optim.SGD, as most programs are written. Sparse
             gradients cannot be captured, so these steps run eagerly; the dense network is
             compiled all the same.
Batches lie in device memory before the clock starts; each step copies one of them to the graph's
inputs.
"""
import argparse
import statistics
import time

import torch
from torch import nn

import common


def parse():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--shape", choices=["C1", "C2"], default="C1")
    arguments.add_argument(
        "--row-cap", type=int, help="rows of a table at most; the shape's own by default"
    )
    arguments.add_argument("--batch-size", type=int, default=65536)
    arguments.add_argument(
        "--dtype", choices=["f32", "tf32", "bf16"], default="bf16", help="matrix products"
    )
    arguments.add_argument("--table-dtype", choices=["f32", "bf16"], default="f32")
    arguments.add_argument("--tables", choices=["index_add", "bags"], default="index_add")
    arguments.add_argument("--seconds", type=float, default=10)
    arguments.add_argument("--block", type=float, default=0.3)
    arguments.add_argument("--device", default="cuda")
    arguments.add_argument("--no-compile", action="store_true")
    arguments.add_argument(
        "--mode",
        default="max-autotune-no-cudagraphs",
        help="of torch.compile; `default` takes seconds, not minutes",
    )
    arguments.add_argument("--no-graph", action="store_true")
    arguments.add_argument("--smoke", action="store_true")
    a = arguments.parse_args()
    if a.smoke:
        a.device, a.batch_size, a.row_cap, a.seconds, a.block = "cpu", 64, 1000, 0.0, 0.0
        a.no_compile = a.no_graph = True
    return a


def shape_of(name, row_cap):
    """A shape of common.py; with `row_cap`, of the published numbers of rows under this cap."""
    shape = common.SHAPES[name]
    published = {"C1": common.TERABYTE, "C2": common.KAGGLE}[name]
    return (
        shape if row_cap is None else shape | dict(rows=[min(rows, row_cap) for rows in published])
    )


def mlp(sizes, relu_last):
    layers = []
    for i in range(len(sizes) - 1):
        layers.append(nn.Linear(sizes[i], sizes[i + 1]))
        if relu_last or i < len(sizes) - 2:
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


class Dense(nn.Module):
    """Everything but the tables: from dense features and pooled vectors (B x 26 x dim) to the mean
    loss."""

    def __init__(self, shape):
        super().__init__()
        num_features = common.NUM_TABLES + 1
        row, column = torch.tril_indices(num_features, num_features, -1)
        self.register_buffer("flat", row * num_features + column)
        self.bottom = mlp([common.NUM_DENSE] + shape["bottom"], True)
        self.top = mlp([shape["dim"] + len(row)] + shape["top"], False)

    def forward(self, dense, pooled, labels):
        x = self.bottom(dense)
        features = torch.cat([x.unsqueeze(1), pooled.to(x.dtype)], 1)
        products = (
            torch.bmm(features, features.transpose(1, 2)).flatten(1).index_select(1, self.flat)
        )
        logits = self.top(torch.cat([x, products], 1)).squeeze(1)
        return nn.functional.binary_cross_entropy_with_logits(logits.float(), labels)


def fill(rows):
    """Uniform(-1/sqrt(n), 1/sqrt(n)) from a repeated random block: initialising is not what is
    measured."""
    block, flat = torch.rand(1 << 20, device=rows.device) * 2 - 1, rows.view(-1)
    for i in range(0, flat.numel(), block.numel()):
        n = min(block.numel(), flat.numel() - i)
        flat[i:i + n] = block[:n] * rows.shape[0] ** -0.5
    return rows


class Trainer:
    def __init__(self, a):
        self.a, self.shape = a, shape_of(a.shape, a.row_cap)
        self.rate, self.dim = self.shape["learning_rate"], self.shape["dim"]
        torch.manual_seed(0)
        self.dense = Dense(self.shape).to(a.device)
        self.loss = (
            self.dense
            if a.no_compile
            else torch.compile(self.dense, mode=a.mode)
        )
        self.optimizer = torch.optim.SGD(self.dense.parameters(), lr=self.rate, foreach=True)
        firsts = [0]
        for rows in self.shape["rows"]:
            firsts.append(firsts[-1] + rows)
        dtype = torch.float32 if a.table_dtype == "f32" else torch.bfloat16
        self.rows = torch.empty(firsts[-1], self.dim, device=a.device, dtype=dtype)
        for first, last in zip(firsts, firsts[1:]):
            fill(self.rows[first:last])
        self.firsts = torch.tensor(firsts[:-1], device=a.device)
        if a.tables == "bags":
            bounds = list(zip(firsts, firsts[1:]))
            self.bags = nn.ModuleList(
                nn.EmbeddingBag(
                    last - first, self.dim, mode="sum", sparse=True, _weight=self.rows[first:last]
                )
                for first, last in bounds
            )
            self.offsets = torch.arange(a.batch_size, device=a.device)
            self.sparse_optimizer = torch.optim.SGD(self.bags.parameters(), lr=self.rate)
        self.graph = None

    def load(self, batches):
        """Puts batches into device memory; ids (B x 26) count over all tables, except for bags."""
        a = self.a
        self.batches = []
        for dense, ids, labels in batches:
            ids = torch.stack([torch.from_numpy(i.copy()) for i in ids], 1).to(a.device)
            ids = ids if a.tables == "bags" else ids + self.firsts
            self.batches.append(
                (torch.from_numpy(dense).to(a.device), ids, torch.from_numpy(labels).to(a.device))
            )
        # Rows of float32 for the graph, which reads and writes the same memory at each replay.
        self.inputs = [torch.empty_like(part) for part in self.batches[0]]
        self.index, self.last = 0, None

    def compute(self, dense, ids, labels):
        """One step; nothing of it asks the device anything where tables are `index_add`."""
        autocast = torch.autocast(
            self.a.device, dtype=torch.bfloat16, enabled=self.a.dtype == "bf16", cache_enabled=False
        )
        if self.a.tables == "bags":
            vectors = [bag(ids[:, t], self.offsets) for t, bag in enumerate(self.bags)]
            pooled = torch.stack(vectors, 1)
        else:
            pooled = (
                self.rows.index_select(0, ids.view(-1)).view(*ids.shape, self.dim).requires_grad_()
            )
        with autocast:
            loss = self.loss(dense, pooled, labels)
        loss.backward()
        self.optimizer.step()
        if self.a.tables == "bags":
            self.sparse_optimizer.step()
            self.sparse_optimizer.zero_grad(set_to_none=True)
        else:
            d_vectors = pooled.grad.view(-1, self.dim).to(self.rows.dtype)
            self.rows.index_add_(0, ids.view(-1), d_vectors, alpha=-self.rate)
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def capture(self):
        """Records one step as a CUDA graph, after a few on a stream of their own, as PyTorch's
        documentation asks for."""
        for to, part in zip(self.inputs, self.batches[0]):
            to.copy_(part)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(5):
                self.compute(*self.inputs)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.last = self.compute(*self.inputs)
        self.graph = graph

    def step(self):
        batch = self.batches[self.index % len(self.batches)]
        self.index += 1
        if self.graph is None:
            self.last = self.compute(*batch)
            return
        for to, part in zip(self.inputs, batch):
            to.copy_(part, non_blocking=True)
        self.graph.replay()

    def wait(self):
        if self.a.device == "cuda":
            torch.cuda.synchronize()

    def steps(self, count):
        """Seconds of so many steps, waited for."""
        self.wait()
        start = time.perf_counter()
        for _ in range(count):
            self.step()
        self.wait()
        return time.perf_counter() - start


def measure(trainer, a):
    """Samples a second: of each block of steps."""
    trainer.steps(5)
    per_block = max(1, int(a.block / trainer.steps(1)))
    rates, spent = [], 0.0
    while spent < a.seconds or len(rates) < (5 if a.seconds else 1):
        seconds = trainer.steps(per_block)
        spent += seconds
        rates.append(per_block * a.batch_size / seconds)
    return rates


def check_ways_agree(a):
    """index_add is SGD on EmbeddingBags: the same losses within rounding, over steps in which rows
    repeat."""
    losses = []
    for tables in ("index_add", "bags"):
        options = argparse.Namespace(**vars(a) | dict(tables=tables, dtype="f32"))
        trainer = Trainer(options)
        trainer.load(common.make_batches(trainer.shape, a.batch_size, 4))
        losses.append([])
        for _ in range(8):
            trainer.step()
            losses[-1].append(trainer.last.item())
    worst = max(abs(x - y) for x, y in zip(*losses))
    assert worst < 1e-5, f"index_add and bags differ by {worst}: {losses}"
    assert losses[0][-1] < losses[0][0], f"the loss does not fall: {losses[0]}"


def main():
    a = parse()
    if a.smoke:
        check_ways_agree(a)
    if a.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("PyTorch sees no GPU: --smoke runs on the CPU")
    torch.set_float32_matmul_precision("highest" if a.dtype == "f32" else "high")
    trainer = Trainer(a)
    trainer.load(
        common.make_batches(trainer.shape, a.batch_size, common.default_batches(a.batch_size))
    )
    trainer.step()
    first = trainer.last.item()
    captured = not a.no_graph and a.tables == "index_add"
    if captured:
        trainer.capture()
    rates = measure(trainer, a)
    rate = statistics.median(rates)
    on_gpu = a.device == "cuda"
    common.emit(
        peer="torch",
        tables=a.tables,
        config=a.shape,
        rows=sum(trainer.shape["rows"]),
        batch=a.batch_size,
        dtype=a.dtype,
        table_dtype=a.table_dtype,
        optimizer="sgd",
        samples_per_s=rate,
        best=max(rates),
        ms_per_iter=1e3 * a.batch_size / rate,
        n=len(rates),
        compiled=None if a.no_compile else a.mode,
        captured=captured,
        device=torch.cuda.get_device_name() if on_gpu else "cpu",
        torch=torch.__version__,
        cuda=torch.version.cuda,
        gpu_memory_gib=torch.cuda.max_memory_allocated() / 2**30 if on_gpu else 0.0,
        loss_first=first,
        loss_last=trainer.last.item(),
    )


if __name__ == "__main__":
    main()
