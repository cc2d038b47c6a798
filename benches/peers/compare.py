"""Headlong and PyTorch in turn, round after round, on one machine; prints medians and ratios.

    python compare.py [--shape C1 C2 C3] [--batch-size 2048] [--dtype f32 bf16] [--threads 1 2]
        [--rounds 3]
        [--headlong PATH] [--only REGEX] [--out FILE]

Within a round every program of a case runs once, in an order that rotates from round to round, so
that a slow minute of the machine does not fall on only one of them.
"""
import argparse
import itertools
import json
import pathlib
import re
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
arguments = argparse.ArgumentParser()
arguments.add_argument("--shape", nargs="*", default=["C1", "C2"])
arguments.add_argument("--batch-size", nargs="*", type=int, default=[2048])
arguments.add_argument("--dtype", nargs="*", choices=["f32", "bf16"], default=["f32"])
arguments.add_argument("--threads", nargs="*", type=int, default=[1])
arguments.add_argument("--rounds", type=int, default=3)
arguments.add_argument("--seconds", type=float, default=5)
arguments.add_argument("--headlong", default=str(HERE.parents[1] / "target/release/headlong"))
arguments.add_argument(
    "--only", default="", help="programs whose name matches this regular expression"
)
arguments.add_argument("--out", default="", help="append every result as a JSON line to this file")
a = arguments.parse_args()


def programs(shape, batch_size, dtype, threads):
    """Name and command of everything compared in one case."""
    case = [
        "--shape",
        shape,
        "--batch-size",
        str(batch_size),
        "--dtype",
        dtype,
        "--threads",
        str(threads),
        "--seconds",
        str(a.seconds),
    ]
    peer = [sys.executable, str(HERE / "dlrm_peer.py")] + case
    everything = {"headlong": [a.headlong, "bench", "iteration", "--json"] + case}
    tables = {"torch": ["--tables", "torch"], "fbgemm": ["--tables", "fbgemm"]}
    if shape == "C3":
        tables["fbgemm row-wise"] = ["--tables", "fbgemm", "--optimizer", "rowwise_adagrad"]
    # What a user can switch: a precision that costs f32 no accuracy here (notes in
    # docs/benchmarking.md), and the compiler.
    medium = {"": [], ", medium": ["--matmul-precision", "medium"]} if dtype == "f32" else {"": []}
    compiled = {"": [], ", compile": ["--compile"]}
    for (name, of_tables), (m, of_medium), (c, of_compile) in itertools.product(
            tables.items(), medium.items(), compiled.items()):
        everything[name + m + c] = peer + of_tables + of_medium + of_compile
    return [(name, command) for name, command in everything.items() if re.search(a.only, name)]


def measure(name, command):
    """The last JSON line that has samples_per_s, or None after saying why there is none."""
    done = subprocess.run(command, capture_output=True, text=True)
    lines = [
        line
        for line in done.stdout.splitlines()
        if line.startswith("{") and "samples_per_s" in line
    ]
    if not lines:
        print(f"{name} failed: {done.stderr.strip()[-300:]}", file=sys.stderr)
        return None
    return json.loads(lines[-1])


def main():
    cases = list(itertools.product(a.shape, a.batch_size, a.dtype, a.threads))
    results = {}
    for round_index, case in itertools.product(range(a.rounds), cases):
        todo = programs(*case)
        turn = round_index % max(1, len(todo))
        for name, command in todo[turn:] + todo[:turn]:
            result = measure(name, command)
            if result is None:
                continue
            results.setdefault((case, name), []).append(result)
            if a.out:
                with open(a.out, "a") as out:
                    out.write(json.dumps(dict(program=name, round=round_index) | result) + "\n")
    for case in cases:
        medians = {
            name: statistics.median(r["samples_per_s"] for r in rs)
            for (c, name), rs in results.items()
            if c == case
        }
        ours = medians.get("headlong")
        print(
            f"\n{case[0]}, batch {case[1]}, {case[2]}, {case[3]} thread(s): samples/s, "
            "median of rounds"
        )
        for name, value in sorted(medians.items(), key=lambda x: -x[1]):
            rounds = results[case, name]
            ratio = (
                f"headlong is {ours / value:5.2f} times that" if ours and name != "headlong" else ""
            )
            rss = max(r["rss_mib"] for r in rounds)
            print(
                f"  {name:32s}{value:10.0f}  foreign {max(r['foreign'] for r in rounds):.2f}  "
                f"{rss:6.0f} MiB  {ratio}"
            )
        peers = {name: value for name, value in medians.items() if name != "headlong"}
        if ours and peers:
            best = max(peers, key=peers.get)
            print(f"ratio {case[0]} {case[1]} {case[2]} {case[3]} {ours / peers[best]:.3f} {best}")


if __name__ == "__main__":
    main()
