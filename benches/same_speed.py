#!/usr/bin/env python3
"""Samples per second of two programs in turn: is the new one as fast as the old one?

    benches/same_speed.py NEW OLD [--rounds N] [--seconds S] [--row-cap N] [--only WORD]
        [--out FILE]

Each cell is one `bench iteration`: shapes C1, C2 (batch 128 and 2,048) and C3, in f32 and bf16,
with one and two threads. In every round both programs run a cell one after the other, the one that
begins changing from round to round. Printed is the median of the rounds' ratios (new over old) with
their range; the exit code is 1 where a median is below 0.98. Let nothing else run meanwhile.
"""

import argparse, json, statistics, subprocess, sys

TARGET = 0.98


def rate(program, cell, options):
    shape, batch, dtype, threads = cell
    arguments = ["--shape", shape, "--batch-size", batch, "--dtype", dtype, "--threads", threads]
    arguments += ["--device", "cpu", "--json", *options]
    run = [program, "bench", "iteration"] + [str(argument) for argument in arguments]
    output = subprocess.run(run, check=True, capture_output=True, text=True).stdout
    return json.loads(output.splitlines()[-1])["samples_per_s"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("new")
    parser.add_argument("old")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--row-cap", help="rows of a table at most; the shape's own by default")
    parser.add_argument("--only", default="")
    parser.add_argument("--out")
    given = parser.parse_args()
    shapes = [("C1", 2048), ("C2", 128), ("C2", 2048), ("C3", 2048)]
    cells = [(*shape, d, t) for shape in shapes for d in ("f32", "bf16") for t in (1, 2)]
    cells = [cell for cell in cells if given.only in " ".join(map(str, cell))]
    options = ["--seconds", given.seconds]
    options += ["--row-cap", given.row_cap] if given.row_cap else []
    ratios = {cell: [] for cell in cells}
    for turn in range(given.rounds):
        for cell in cells:
            programs = [given.new, given.old]
            order = programs if turn % 2 == 0 else programs[::-1]
            rates = {program: rate(program, cell, options) for program in order}
            ratios[cell].append(rates[given.new] / rates[given.old])
    out = open(given.out, "w") if given.out else None
    slower = 0
    for cell, found in ratios.items():
        median = statistics.median(found)
        slower += median < TARGET
        name = "{} {} {} threads={}".format(*cell)
        line = f"{name:<26} {median:.3f}  {min(found):.3f} to {max(found):.3f}  n={len(found)}"
        for stream in filter(None, (sys.stdout, out)):
            print(line, file=stream, flush=True)
    sys.exit(1 if slower else 0)


if __name__ == "__main__":
    main()
