"""polars from a Criteo text file to arrays: label, 13 int32 (missing 0) and 26 uint32 (hex; missing
0).

    python parse_tsv.py FILE [--threads 1] [--rounds 3]

Compare with `cargo run --release -p headlong-benches -- --only parse --file FILE`. The file is in
the page cache after the first round; `rows_per_cpu_s` and `mb_per_cpu_s` count the program's own
CPU time, so a busy neighbour does not change them much.
"""
import argparse
import os
import statistics

arguments = argparse.ArgumentParser()
arguments.add_argument("file")
arguments.add_argument("--threads", type=int, default=1)
arguments.add_argument("--rounds", type=int, default=3)
a = arguments.parse_args()
os.environ["POLARS_MAX_THREADS"] = str(a.threads)

import polars as pl  # noqa: E402  (after the thread count)

import common  # noqa: E402

INTEGERS = [f"i{k}" for k in range(13)]
CATEGORIES = [f"c{k}" for k in range(26)]


def read():
    types = {n: pl.Int32 for n in ["label"] + INTEGERS} | {n: pl.String for n in CATEGORIES}
    frame = pl.scan_csv(
        a.file, separator="\t", has_header=False, new_columns=list(types), schema_overrides=types
    )
    hex_words = pl.col(CATEGORIES).str.to_integer(base=16, strict=False, dtype=pl.Int64)
    frame = frame.with_columns(
        pl.col(INTEGERS).fill_null(0), hex_words.fill_null(0).cast(pl.UInt32)
    ).collect()
    return (
        frame["label"].to_numpy(),
        frame.select(INTEGERS).to_numpy(),
        frame.select(CATEGORIES).to_numpy(),
    )


def main():
    size, results, labels = os.path.getsize(a.file), [], None
    for _ in range(a.rounds):
        with common.Sample() as s:
            labels = read()[0]
        results.append((s.cpu, s.wall, s.foreign))
    cpu, wall, foreign = (statistics.median(r[k] for r in results) for k in range(3))
    common.emit(
        reader="polars scan_csv",
        threads=a.threads,
        rows=len(labels),
        rows_per_s=len(labels) / wall,
        rows_per_cpu_s=len(labels) / cpu,
        mb_per_s=size / wall / 1e6,
        mb_per_cpu_s=size / cpu / 1e6,
        foreign=foreign,
        rounds=a.rounds,
    )


if __name__ == "__main__":
    main()
