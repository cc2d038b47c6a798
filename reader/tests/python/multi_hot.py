"""Prints what numpy draws for small tables: the numbers that reader/src/multi_hot/tests.rs holds.

    python multi_hot.py                       (numpy, any version: RandomState is frozen)

The draws are those of mlcommons/training, recommendation_v2: one seed, then for each table a matrix
of the other ids.
"""
import json

import numpy as np

# Rows, ids a sample.
TABLES = [(7, 3), (1, 4), (10, 1), (1000, 2), (3, 2), (40_000_000, 1), (65_536, 5)]
SHOWN = 12  # Numbers of each table that are compared one by one; of the rest the sum.


def draw(distribution, rows, size):
    shape = (rows, size - 1)
    if distribution == "uniform":
        return np.random.randint(0, rows, size=shape)
    return np.random.pareto(a=0.25, size=shape).astype(np.int32) % rows


def main():
    for distribution in ("uniform", "pareto"):
        np.random.seed(0)
        tables = [draw(distribution, *table).ravel() for table in TABLES]
        print(
            distribution,
            json.dumps([[t[:SHOWN].tolist(), int(t.astype(np.int64).sum())] for t in tables]),
        )


if __name__ == "__main__":
    main()
