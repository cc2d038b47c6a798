#!/usr/bin/env python3
"""What training from data frames costs, next to the command on the same rows.

    python benches/python/measure.py WHEEL [--rows N] [--rounds N] [--criteo FOLDER]

For a Python with pip, venv, polars and pyarrow. It installs the wheel into an environment of its
own, which borrows these packages, and prints:

- samples/s of training from a frame of pyarrow and of polars, and of the command from a file of the
  format `headlong`, in turn: the same rows, configuration and weights; seconds of the whole call or
  command, and of those of the processor (which other programs disturb less);
- memory that training takes above the frame, beyond what it takes for a frame of few rows;
- seconds to install and to import the package; the Criteo sample in six lines, where it is.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CONFIG = """
[data.columns]
label = "label"
dense = [{dense}]
categorical = [{sparse}]

[model]
dim = 16
bottom = [64, 16]
top = [64, 1]

[tables]
rows = 20000

[train]
batch_size = 2048
epochs = 1
"""
DENSE, SPARSE = [f"I{at}" for at in range(1, 14)], [f"C{at}" for at in range(1, 27)]

#: A frame, from a file of Parquet.
READ = {
    "pyarrow": "import pyarrow.parquet; rows = pyarrow.parquet.read_table(file)",
    "polars": "import polars; rows = polars.read_parquet(file)",
}
TRAIN = """
import json, resource, sys, time
file, config, cache = sys.argv[1:]
{read}
import headlong
def processor():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
def memory(name):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))
size = rows.nbytes if hasattr(rows, "nbytes") else rows.estimated_size()
open("/proc/self/clear_refs", "w").write("5")
before, used, started = memory("VmRSS:"), processor(), time.perf_counter()
model = headlong.train(config, rows, progress=False, threads=2, **{{"data.cache": cache}})
seconds, done = time.perf_counter() - started, model.events[-1]
print(json.dumps(dict(seconds=seconds, rate=done["samples_per_s"], digest=done["weights_digest"],
                      cpu=processor() - used, more=memory("VmHWM:") - before, size=size)))
"""
SIX_LINES = """
import headlong
model = headlong.train(data="train.txt.gz", valid="valid.txt.gz")
print(model)
print(model.evaluate("valid.txt.gz")["auc"])
print(model.predict("unlabelled.txt.gz")[:3])
model.save("model")
"""


def made(folder, rows, name):
    """Rows in Parquet: counts, and ids of which few are frequent."""
    import numpy
    import pyarrow
    import pyarrow.parquet

    draw = numpy.random.default_rng(7)
    columns = {"label": draw.integers(0, 2, rows, numpy.int8)}
    columns.update({name: numpy.floor(draw.exponential(20, rows)) for name in DENSE})
    ids = lambda: (draw.random(rows) ** 3 * 50_000).astype(numpy.int64)
    columns.update({name: ids() for name in SPARSE})
    file = folder / name
    pyarrow.parquet.write_table(pyarrow.table(columns), file)
    return file


def run(words, **options):
    ended = subprocess.run([str(word) for word in words], capture_output=True, text=True, **options)
    if ended.returncode != 0:
        sys.exit(f"{words}: {ended.stderr}")
    return ended.stdout


class Measure:
    def __init__(self, python, folder):
        self.python, self.folder = python, folder
        self.config = folder / "rows.toml"
        quoted = lambda names: ", ".join(f'"{name}"' for name in names)
        self.config.write_text(CONFIG.format(dense=quoted(DENSE), sparse=quoted(SPARSE)))

    def by_frame(self, kind, file, cache="auto"):
        program = TRAIN.format(read=READ[kind])
        words = [self.python, "-c", program, file, self.config, cache]
        return json.loads(run(words, cwd=self.folder).splitlines()[-1])

    def by_command(self, file, log="log.jsonl"):
        log = self.folder / log
        used, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        words = ["train", "--config", self.config, "--data", file, "--threads", 2]
        run([self.python, "-m", "headlong", *words, "--log-json", log], cwd=self.folder)
        done = json.loads(log.read_text().splitlines()[-1])
        seconds, now = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
        digest = done["weights_digest"]
        return dict(seconds=seconds, rate=done["samples_per_s"], digest=digest, cpu=cpu)

    def rates(self, parquet, rounds):
        native = self.folder / "rows.headlong"
        words = ["data", "convert", "--config", self.config, "--data", parquet, "--to", "headlong"]
        run([self.python, "-m", "headlong", *words, "--output", native], cwd=self.folder)
        off = "a frame of pyarrow, data.cache = off"
        ways = {
            "the command, format headlong": lambda: self.by_command(native),
            "a frame of pyarrow": lambda: self.by_frame("pyarrow", parquet),
            "a frame of polars": lambda: self.by_frame("polars", parquet),
            off: lambda: self.by_frame("pyarrow", parquet, "off"),
        }
        found = {name: [] for name in ways}
        for _ in range(rounds):
            for name, way in ways.items():
                found[name].append(way())
        digests = {one["digest"] for all in found.values() for one in all}
        print(f"weights: {'the same' if len(digests) == 1 else 'DIFFERENT'} in all of these runs")
        command = None
        for name, all in found.items():
            rates = [one["rate"] for one in all]
            median = statistics.median(rates)
            command = command or rates
            # Each with its neighbour in time.
            ratio = statistics.median(mine / other for mine, other in zip(rates, command))
            seconds, cpu = (statistics.median(one[of] for one in all) for of in ("seconds", "cpu"))
            shown = " ".join(f"{rate:,.0f}" for rate in rates)
            print(f"{name}: {median:,.0f} samples/s ({shown}), {ratio:.3f} of the command's; "
                  f"{seconds:.2f} s in all, of the processor {cpu:.2f} s")

    def memory(self, large, small):
        for kind in READ:
            for cache in ("off", "auto"):
                most, least = (self.by_frame(kind, file, cache) for file in (large, small))
                more, size = most["more"] - least["more"], most["size"] - least["size"]
                print(f"memory above a frame of {kind} of {size / 1e6:.0f} MB, data.cache = "
                      f'"{cache}": {more / 1e6:.1f} MB, {100 * more / size:.1f} % of it')


def installed(wheel, folder):
    """The Python of a new environment with the wheel, and the seconds to install it."""
    environment = folder / "environment"
    run([sys.executable, "-m", "venv", "--without-pip", environment])
    python = environment / "bin/python"
    started = time.perf_counter()
    run([sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-index", wheel])
    seconds = time.perf_counter() - started
    place = "import sysconfig; print(sysconfig.get_path('purelib'))"
    ours = run([sys.executable, "-c", place]).strip()
    theirs = Path(run([python, "-c", place]).strip())
    (theirs / "borrowed.pth").write_text(ours)
    return python, seconds


def import_time(python):
    """Milliseconds that an import takes, the median of 20."""
    program = "from time import *; t = perf_counter(); import headlong; print(perf_counter() - t)"
    return statistics.median(1000 * float(run([python, "-c", program])) for _ in range(20))


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("wheel", type=Path)
    arguments.add_argument("--rows", type=int, default=400_000)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--criteo", type=Path)
    asked = arguments.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        python, seconds = installed(asked.wheel, folder)
        print(f"wheel: {asked.wheel.stat().st_size / 1e6:.1f} MB, installed in {seconds:.2f} s, "
              f"imported in {import_time(python):.1f} ms (median of 20)")
        measure = Measure(python, folder)
        print(f"{asked.rows:,} rows, 13 numbers and 26 ids; load before: {os.getloadavg()[0]:.1f}")
        large = made(folder, asked.rows, "large.parquet")
        measure.rates(large, asked.rounds)
        measure.memory(large, made(folder, 4096, "small.parquet"))
        if asked.criteo is not None:
            for name in ("train.txt.gz", "valid.txt.gz", "unlabelled.txt.gz"):
                (folder / name).symlink_to((asked.criteo / name).resolve())
            started = time.perf_counter()
            print(run([python, "-c", SIX_LINES], cwd=folder).strip())
            print(f"the Criteo sample in six lines: {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main()
