"""Collectives of Headlong, Gloo and Open MPI in turn, round after round, on one machine; prints
medians and ratios.

    python collectives.py [--procs 2 4] [--rounds 5] [--seconds-per-size 0.3]
        [--max-bytes 4194304] [--headlong PATH]
        [--only REGEX] [--out FILE.jsonl]

Within a round every program runs once, in an order that rotates from round to round, so that a slow
minute of the machine does not fall on only one of them. A figure is the median over rounds of each
round's median time on rank 0. The ratio is Headlong's time over the time of the better of Gloo and
Open MPI for threads (`local`) and for processes that share memory (`shm`), and over Gloo's for TCP
(`tcp`): below 1, Headlong is faster. UCX below Headlong (`ucx`) has no ratio, and no figures where
it is not installed. More ranks than cores are reported, too; that no waiting rank
keeps a core busy is what they show.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
arguments = argparse.ArgumentParser()
arguments.add_argument("--procs", nargs="*", type=int, default=[2, 4])
arguments.add_argument("--rounds", type=int, default=5)
arguments.add_argument("--seconds-per-size", type=float, default=0.3)
arguments.add_argument("--max-bytes", type=int, default=4 << 20)
arguments.add_argument("--headlong", default=str(HERE.parents[1] / "target/release/headlong"))
arguments.add_argument(
    "--only", default="", help="programs whose name matches this regular expression"
)
arguments.add_argument("--out", default="", help="append every result as a JSON line to this file")
a = arguments.parse_args()

OPERATIONS = ("all_reduce", "alltoall")
NAMES = ("headlong local", "headlong shm", "headlong tcp", "headlong ucx", "gloo", "openmpi")


def headlong(backend, procs):
    case = [
        "--ranks",
        str(procs),
        "-e",
        str(a.max_bytes),
        "--seconds-per-size",
        str(a.seconds_per_size),
        "--json",
    ]
    # In the library's own form, as the scripts of the others call theirs.
    place = {"all_reduce": "in", "alltoall": "out"}
    return [
        [a.headlong, "bench", operation, "--backend", backend, "--place", place[operation]] + case
        for operation in OPERATIONS
    ]


def commands(procs):
    """Name and commands of every program; Open MPI only where it is installed."""
    case = ["--seconds-per-size", str(a.seconds_per_size), "--max-bytes", str(a.max_bytes)]
    everything = {
        "headlong local": headlong("local", procs),
        "headlong shm": headlong("shm", procs),
        "headlong tcp": headlong("tcp", procs),
        "headlong ucx": headlong("ucx", procs),
        "gloo": [[sys.executable, str(HERE / "coll_gloo.py"), "--procs", str(procs)] + case],
    }
    if shutil.which("mpirun"):
        mpirun = ["mpirun", "--oversubscribe", "-n", str(procs)]
        mpirun += ["--allow-run-as-root"] if os.getuid() == 0 else []
        everything["openmpi"] = [mpirun + [sys.executable, str(HERE / "coll_mpi.py")] + case]
    return [(name, todo) for name, todo in everything.items() if re.search(a.only, name)]


def measure(name, todo):
    """(operation, bytes, median in microseconds) of everything a program says."""
    for command in todo:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            print(f"{name} failed: {done.stderr.strip()[-300:]}", file=sys.stderr)
        for line in filter(lambda line: line.startswith("{"), done.stdout.splitlines()):
            document = json.loads(line)
            for row in document.get("rows", [document]):
                yield row


def main():
    results = {}
    for number in range(a.rounds):
        for procs in a.procs:
            todo = commands(procs)
            turn = number % max(1, len(todo))
            for name, steps in todo[turn:] + todo[:turn]:
                for row in measure(name, steps):
                    key = (procs, row["op"], row["bytes"])
                    results.setdefault(key, {}).setdefault(name, []).append(
                        row.get("rank0_p50_us", row["p50_us"])
                    )
                    if a.out:
                        with open(a.out, "a") as out:
                            out.write(
                                json.dumps(
                                    row | {"program": name, "round": number, "at": int(time.time())}
                                )
                                + "\n"
                            )
    report(results)


def report(results):
    print(
        f"{'ranks':>5} {'operation':<11} {'bytes':>9}"
        + "".join(f"{name + ' us':>18}" for name in NAMES)
        + f"{'local/best':>12}{'shm/best':>10}{'tcp/gloo':>10}"
    )
    worst = {"local": 0.0, "shm": 0.0, "tcp": 0.0}
    for (procs, operation, size), by_name in sorted(results.items()):
        p50 = {name: statistics.median(times) for name, times in by_name.items()}
        best = min((p50[name] for name in ("gloo", "openmpi") if name in p50), default=float("nan"))
        local, shm, tcp = (
            p50.get(f"headlong {backend}", float("nan")) for backend in ("local", "shm", "tcp")
        )
        ratios = {
            "local": local / best,
            "shm": shm / best,
            "tcp": tcp / p50.get("gloo", float("nan")),
        }
        worst = (
            {kind: max(worst[kind], ratio) for kind, ratio in ratios.items()}
            if procs == 2
            else worst
        )
        print(
            f"{procs:>5} {operation:<11} {size:>9}"
            + "".join(f"{p50.get(name, float('nan')):>18.2f}" for name in NAMES)
            + f"{ratios['local']:>12.2f}{ratios['shm']:>10.2f}{ratios['tcp']:>10.2f}"
        )
    print(
        f"worst ratio of 2 ranks: local {worst['local']:.2f}, shm {worst['shm']:.2f}, "
        f"tcp {worst['tcp']:.2f}"
    )
    print("load averages at the end:", " ".join(f"{load:.2f}" for load in os.getloadavg()))


if __name__ == "__main__":
    main()
