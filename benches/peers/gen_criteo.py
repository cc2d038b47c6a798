"""Writes a synthetic file in Criteo's text format (label, 13 integers, 26 hex words), Zipf
categories, missing values.

    python gen_criteo.py OUT.tsv [--rows 1000000]
"""
import argparse

import numpy as np

import common

# Share of missing values per column, like Criteo's Kaggle set; location of the integers'
# log-normal.
MISSING_INTEGER = [.45, 0, .21, .22, .03, .22, .04, 0, .04, .45, .04, .77, .22]
MISSING_CATEGORY = [
    0, 0, 0.034, 0.034, 0, 0.12, 0, 0, 0, 0, 0, 0.034, 0, 0, 0, 0.034, 0, 0, 0.44, 0.44, 0.034,
    0.76, 0, 0.034, 0.44, 0.44,
]
LOCATION = [1.0, 3.0, 2.0, 1.6, 8.0, 3.8, 1.9, 2.2, 4.0, .5, 1.0, .5, 1.8]
CHUNK = 100_000


def word(ids, column):
    """A 32-bit word a category, spread by a multiplicative hash."""
    spread = (ids.astype(np.uint64) + np.uint64(column * 1_000_003 + 17)) * np.uint64(
        0x9E3779B97F4A7C15
    )
    return ((spread >> np.uint64(32)) & np.uint64(0xFFFFFFFF)).astype(np.uint32)


def columns(rng, count):
    yield np.where(rng.random(count) < .256, "1", "0").tolist()
    for j in range(13):
        low = -2 if j == 1 else 0  # the second integer of Criteo's data goes down to -2
        values = np.maximum(
            np.floor(np.exp(rng.normal(LOCATION[j], 1.2, count))).astype(np.int64) - 1 - (j == 1),
            low,
        )
        text = values.astype(str)
        text[rng.random(count) < MISSING_INTEGER[j]] = ""
        yield text.tolist()
    for j, rows in enumerate(common.KAGGLE):
        unique, inverse = np.unique(word(common.zipf_ids(rng, count, rows), j), return_inverse=True)
        text = np.array([f"{x:08x}" for x in unique])[inverse]
        text[rng.random(count) < MISSING_CATEGORY[j]] = ""
        yield text.tolist()


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("out")
    arguments.add_argument("--rows", type=int, default=1_000_000)
    a = arguments.parse_args()
    rng = np.random.default_rng(5)
    with open(a.out, "w") as out:
        for start in range(0, a.rows, CHUNK):
            count = min(CHUNK, a.rows - start)
            out.writelines("\t".join(row) + "\n" for row in zip(*columns(rng, count)))


if __name__ == "__main__":
    main()
