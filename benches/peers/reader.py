"""Reading and decoding against the disk's own rate, the decompressor and polars, on one
machine; prints each ratio and its bar.

    python reader.py FOLDER [--headlong PATH] [--gib 4] [--rounds 3] [--out FILE]
        [--only make|binary|text]

`make` writes the files into FOLDER (about 2.5 * GIB; content is made up, and repeats), `binary` and
`text` read them, which needs a quiet machine. Of each figure the median of the rounds is taken, and
what is compared runs in turns.
"""
import argparse
import gzip
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
TILE_ROWS = 200_000
MIB = 1 << 20

arguments = argparse.ArgumentParser()
arguments.add_argument("folder", type=pathlib.Path)
arguments.add_argument("--headlong", default=str(HERE.parents[1] / "target/release/headlong"))
arguments.add_argument("--gib", type=float, default=4)
arguments.add_argument("--rounds", type=int, default=3)
arguments.add_argument("--out", default="", help="append every result as a JSON line to this file")
arguments.add_argument("--only", choices=["make", "binary", "text"])
a = arguments.parse_args()


def repeated(name, tile, size):
    """A file of at least `size` bytes: `tile` again and again."""
    with open(a.folder / name, "wb") as out:
        for _ in range(-(-size // len(tile))):
            out.write(tile)


def text_tile():
    """Rows of Criteo's text: small integers, some of them missing, and words of eight hexadecimal
    digits."""
    draw = random.Random(1)
    number = lambda: "" if draw.random() < 0.2 else str(int(draw.expovariate(0.02)))
    word = lambda: "" if draw.random() < 0.05 else f"{draw.getrandbits(32):08x}"
    rows = (
        "\t".join(
            [str(int(draw.random() < 0.25))]
            + [number() for _ in range(13)]
            + [word() for _ in range(26)]
        )
        for _ in range(TILE_ROWS)
    )
    return ("\n".join(rows) + "\n").encode()


def record_tile(integers, ids):
    """Records: a label, `integers` small numbers and `ids` ids, four bytes each."""
    draw = random.Random(2)
    word = lambda most: draw.randrange(most).to_bytes(4, "little")
    rows = (
        word(2) + b"".join(word(1000) for _ in range(integers)) + draw.randbytes(4 * ids)
        for _ in range(TILE_ROWS // 4)
    )
    return b"".join(rows)


def make():
    a.folder.mkdir(parents=True, exist_ok=True)
    size = int(a.gib * 1024) * MIB
    repeated("mlperf.bin", record_tile(13, 26), size)
    text = text_tile()
    repeated("rows.txt", text, size // 4)
    repeated("rows.txt.gz", gzip.compress(text, 6), size // 16)
    convert = [a.headlong, "data", "convert", "--from", "mlperf", "--to", "headlong"]
    subprocess.run(
        convert + ["--data", a.folder / "mlperf.bin", "--output", a.folder / "rows.hld"], check=True
    )


def bench(name, *more):
    command = [a.headlong, "bench", "reader", str(a.folder / name), "--json", *more]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def dd(name):
    """Bytes a second of one direct read of 1 MiB at a time."""
    command = ["dd", f"if={a.folder / name}", "of=/dev/null", "bs=1M", "iflag=direct"]
    said = subprocess.run(
        command, check=True, stderr=subprocess.PIPE, env={**os.environ, "LC_ALL": "C"}
    ).stderr.decode()
    copied = said.splitlines()[-1]
    return int(copied.split()[0]) / float(copied.split(", ")[-2].split()[0])


def polars(name):
    command = [sys.executable, str(HERE / "parse_tsv.py"), str(a.folder / name), "--rounds", "1"]
    return json.loads(
        subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1]
    )


def in_turns(*measures):
    """The medians of some figures, measured one after another in every round."""
    rounds = [[measure() for measure in measures] for _ in range(a.rounds)]
    return [statistics.median(column) for column in zip(*rounds)]


def report(what, ratio, bar, **figures):
    holds = ratio >= bar if bar > 0 else ratio <= -bar
    line = {"what": what, "ratio": round(ratio, 3), "bar": abs(bar), "holds": holds, **figures}
    print(json.dumps(line), flush=True)
    if a.out:
        with open(a.out, "a") as out:
            out.write(json.dumps(line) + "\n")


def binary():
    for name, more in [("mlperf.bin", ["--format", "mlperf"]), ("rows.hld", [])]:
        found = []

        def undecoded():
            found.append(bench(name, "--no-decode"))
            return found[-1]["bytes_per_s"]

        plain, rate = in_turns(lambda: dd(name), undecoded)
        gb = lambda rate: round(rate / 1e9, 3)
        report(
            f"{name}: bytes next to dd iflag=direct",
            rate / plain,
            0.9,
            dd_gb_per_s=gb(plain),
            gb_per_s=gb(rate),
        )
        cores = statistics.median(pass_["cores"] for pass_ in found)
        report(f"{name}: cores for bytes alone", cores, -0.3)
        decoded = [bench(name, *more) for _ in range(a.rounds)]
        per_core = statistics.median(pass_["bytes_per_s"] / pass_["cores"] for pass_ in decoded)
        rate = statistics.median(pass_["bytes_per_s"] for pass_ in decoded)
        report(f"{name}: decoded GB a second and core", per_core / 1e9, 1.0, gb_per_s=gb(rate))
        peak = max(pass_["peak_rss_bytes"] for pass_ in found + decoded)
        held = found[0]["held_bytes"]
        report(
            f"{name}: memory at the peak over blocks and 32 MiB",
            peak / (held + 32 * MIB),
            -1.0,
            peak_mib=peak // MIB,
        )


def text():
    gz = lambda *more: bench("rows.txt.gz", *more)["seconds"]
    alone, parsed = in_turns(lambda: gz("--decompress-only"), lambda: gz("--format", "criteo"))
    report(
        "rows.txt.gz: seconds over those of the decompressor alone",
        parsed / alone,
        -1.1,
        seconds=round(parsed, 2),
    )
    seconds = lambda passed: passed["seconds"] * passed["cores"]
    per_cpu = lambda passed: passed["samples"] / seconds(passed)
    theirs, ours = in_turns(lambda: polars("rows.txt")["rows_per_cpu_s"],
                            lambda: per_cpu(bench("rows.txt", "--format", "criteo")))
    report(
        "rows.txt: rows a CPU second over polars",
        ours / theirs,
        2.0,
        rows_per_cpu_s=int(ours),
        polars=int(theirs),
    )


for name, step in [("make", make), ("binary", binary), ("text", text)]:
    if a.only in (None, name):
        step()
