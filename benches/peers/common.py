"""What the comparison scripts share: shapes, synthetic data, and timing that knows about
neighbours.

`headlong bench iteration` (trainer/src/commands/bench/) uses the same shapes and kind of data.
"""
import json
import os
import resource
import statistics
import time

# Criteo Terabyte cardinalities at the MLPerf 40 M index range; Criteo Kaggle cardinalities.
TERABYTE = [
    39884406, 39043, 17289, 7420, 20263, 3, 7120, 1543, 63, 38532951, 2953546, 403346, 10, 2208,
    11938, 155, 4, 976, 14, 39979771, 25641295, 39664984, 585935, 12972, 108, 36,
]
KAGGLE = [
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992,
    5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
]
# Ids a sample of each table in MLPerf's DLRM-DCNv2
MULTI_HOT = [3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1]
CAP = 648_000  # makes the Terabyte tables 5.0 M rows in all

SHAPES = {
    # MLPerf DLRM v1: dot interaction, SGD, tables capped to fit
    "C1": dict(
        dim=128,
        bottom=[512, 256, 128],
        top=[1024, 1024, 512, 256, 1],
        rows=[min(c, CAP) for c in TERABYTE],
        hotness=[1] * 26,
        cross=None,
        optimizer="sgd",
        learning_rate=0.1,
    ),
    # Criteo Kaggle as in the original DLRM
    "C2": dict(
        dim=16,
        bottom=[512, 256, 64, 16],
        top=[512, 256, 1],
        rows=KAGGLE,
        hotness=[1] * 26,
        cross=None,
        optimizer="sgd",
        learning_rate=0.1,
    ),
    # MLPerf DLRM-DCNv2: cross network (layers, rank), several ids a sample, Adagrad
    "C3": dict(
        dim=128,
        bottom=[512, 256, 128],
        top=[1024, 1024, 512, 256, 1],
        rows=[min(c, CAP) for c in TERABYTE],
        hotness=MULTI_HOT,
        cross=(3, 512),
        optimizer="adagrad",
        learning_rate=0.005,
    ),
}
NUM_DENSE, NUM_TABLES = 13, 26


def training_flop(shape):
    """FLOP of one training sample: three times the forward pass, less the first layer's input
    gradient. The dot interaction counts the 351 products that are used, not the full 27 x 27."""
    sizes = [NUM_DENSE] + shape["bottom"]
    bottom = sum(a * b for a, b in zip(sizes, sizes[1:]))
    num_features = NUM_TABLES + 1
    if shape["cross"]:
        layers, rank = shape["cross"]
        width = num_features * shape["dim"]
        interaction = layers * 2 * width * rank
    else:
        products = num_features * (num_features - 1) // 2
        width, interaction = shape["dim"] + products, products * shape["dim"]
    sizes = [width] + shape["top"]
    top = sum(a * b for a, b in zip(sizes, sizes[1:]))
    return 2 * (3 * (bottom + interaction + top) - NUM_DENSE * shape["bottom"][0])


def zipf_ids(rng, count, rows, exponent=1.05):
    """`count` ids in [0, rows), Zipf by rank over the whole table, ranks scattered over it by a
    fixed affine map."""
    import numpy as np
    cumulative = np.cumsum(np.arange(1, rows + 1, dtype=np.float64) ** -exponent)
    rank = np.searchsorted(cumulative, rng.random(count) * cumulative[-1]).astype(np.int64)
    rank = np.minimum(rank, rows - 1)
    factor = 2654435761
    while np.gcd(factor, rows) != 1:
        factor += 2
    return (rank * factor + 12345) % rows


def make_batches(shape, batch_size, num_batches, seed=1):
    """List of (dense [B, 13] f32, per table ids [B * hotness] int64, labels [B] f32). Labels follow
    the dense features a little, so that a falling loss can be seen."""
    import numpy as np
    rng = np.random.default_rng(seed)
    ids = [zipf_ids(rng, num_batches * batch_size * h, r).reshape(num_batches, batch_size * h)
           for r, h in zip(shape["rows"], shape["hotness"])]
    truth = rng.standard_normal(NUM_DENSE).astype(np.float32)
    out = []
    for b in range(num_batches):
        dense = np.log1p(rng.exponential(3.0, (batch_size, NUM_DENSE))).astype(np.float32)
        labels = (rng.random(batch_size) < 1 / (1 + np.exp(1.5 - (dense - 1.2) @ truth))).astype(
            np.float32
        )
        out.append((dense, [i[b] for i in ids], labels))
    return out


def default_batches(batch_size):
    return max(8, min(256, 262144 // batch_size))


def _machine_cpu_s():
    """CPU seconds of the whole machine, all but idle and waiting for disks, stolen time
    included."""
    ticks = [int(x) for x in open("/proc/stat").readline().split()[1:]]
    return (sum(ticks[:8]) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


class Sample:
    """with Sample() as s: ...   then s.wall, s.cpu (own CPU seconds) and s.foreign (CPU others
    used, in cores)."""

    def __enter__(self):
        self.machine, self.own, self.start = (
            _machine_cpu_s(),
            time.process_time(),
            time.perf_counter(),
        )
        return self

    def __exit__(self, *exception):
        self.wall = time.perf_counter() - self.start
        self.cpu = time.process_time() - self.own
        self.foreign = max(0.0, _machine_cpu_s() - self.machine - self.cpu) / self.wall


def summarize(samples, limit=0.10):
    """samples: [(value, foreign)]. Median of those in which others used less than `limit` of a
    core; of the least disturbed third where fewer than three are that clean."""
    clean = [v for v, f in samples if f < limit]
    if len(clean) < 3:
        clean = [v for v, f in sorted(samples, key=lambda x: x[1])[:max(3, len(samples) // 3)]]
    return dict(
        median=statistics.median(clean),
        best=max(v for v, _ in samples),
        num_blocks=len(samples),
        foreign=round(statistics.median(f for _, f in samples), 3),
    )


def emit(**fields):
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    fields = {k: round(v, 4) if isinstance(v, float) else v for k, v in fields.items()} | dict(
        rss_mib=round(rss)
    )
    print(json.dumps(fields), flush=True)
