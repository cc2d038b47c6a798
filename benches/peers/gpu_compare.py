"""Headlong and PyTorch on the same GPU in the same call, in turn, with the ratio of their medians.

    python gpu_compare.py --headlong ../../target/release/headlong \\
        --batch-size 65536 6912 --row-cap 40000000 --rounds 3
    # Both on the CPU, small: shows that it runs.
    python gpu_compare.py --headlong ../../target/release/headlong --smoke
    # Ours on the device, a software device say.
    python gpu_compare.py --headlong ../../target/release/headlong --smoke cuda

Each round runs every program once per case, in rotated order, each in a process of its own, so that
they run on the same GPU at the same temperature. Prints each command before its first run, one JSON
line for each run, and for each case the medians and their ratio. Needs PyTorch with CUDA in the
python that starts it. Ends with 1 where a program has failed in every round of a case.
"""
import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))

arguments = argparse.ArgumentParser()
arguments.add_argument("--headlong", required=True, help="the program")
arguments.add_argument("--shape", nargs="+", default=["C1"])
arguments.add_argument("--batch-size", nargs="+", type=int, default=[65536, 6912])
arguments.add_argument("--row-cap", type=int, default=40_000_000)
arguments.add_argument("--dtype", default="bf16")
arguments.add_argument("--rounds", type=int, default=3)
arguments.add_argument("--seconds", type=float, default=10)
arguments.add_argument("--mode", default="max-autotune-no-cudagraphs", help="of torch.compile")
arguments.add_argument("--limit", type=float, default=900, help="seconds that one program may take")
arguments.add_argument(
    "--smoke", nargs="?", const="cpu", choices=["cpu", "cuda"], help="small; where ours computes"
)
arguments.add_argument(
    "--peer", default=os.path.join(HERE, "gpu_peer.py"), help="what computes in PyTorch"
)
a = arguments.parse_args()
if a.smoke:
    a.batch_size, a.row_cap, a.rounds, a.seconds = [64], 1000, 1, 0.0


def ours(shape, batch):
    on_device = ["--device", "cuda", "--dtype", a.dtype, "--schedule", "captured"]
    device = ["--device", "cpu", "--dtype", "f32"] if a.smoke == "cpu" else on_device
    return [
        a.headlong,
        "bench",
        "iteration",
        "--shape",
        shape,
        "--batch-size",
        str(batch),
        "--row-cap",
        str(a.row_cap),
        "--seconds",
        str(a.seconds),
        "--json",
        *device,
    ]


def theirs(tables):
    def command(shape, batch):
        size = (
            ["--smoke"]
            if a.smoke
            else [
                "--batch-size",
                str(batch),
                "--row-cap",
                str(a.row_cap),
                "--seconds",
                str(a.seconds),
                "--dtype",
                a.dtype,
                "--mode",
                a.mode,
            ]
        )
        return [sys.executable, a.peer, "--shape", shape, "--tables", tables, *size]
    return command


PROGRAMS = {"headlong": ours, "torch": theirs("index_add"), "torch, EmbeddingBag": theirs("bags")}


def rate(name, command):
    """Samples a second of one run; none where it fails, with what it said."""
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=a.limit)
    except subprocess.TimeoutExpired:
        print(f"{name}: more than {a.limit:.0f} s", file=sys.stderr)
        return None
    lines = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    if ended.returncode != 0 or not lines:
        print(f"{name}: failed: {(ended.stderr or ended.stdout).strip()[-2000:]}", file=sys.stderr)
        return None
    print(lines[-1], flush=True)
    return json.loads(lines[-1])["samples_per_s"]


def verdict(medians):
    """Ours over the faster of theirs, in words; none where one side has no median."""
    theirs = {name: median for name, median in medians.items() if name != "headlong"}
    if "headlong" not in medians or not theirs:
        return None
    best = max(theirs, key=theirs.get)
    what = "a smoke test: no measurement" if a.smoke else "of the faster of PyTorch's"
    return (f"ratio {medians['headlong'] / theirs[best]:.2f} {what} "
            f"(headlong {medians['headlong']:,.0f} samples/s, {best} {theirs[best]:,.0f})")


def main():
    failed = False
    for shape in a.shape:
        for batch in a.batch_size:
            rates = {name: [] for name in PROGRAMS}
            for round_index in range(a.rounds):
                names = list(PROGRAMS)
                for name in names[round_index % len(names):] + names[:round_index % len(names)]:
                    command = PROGRAMS[name](shape, batch)
                    if round_index == 0:
                        print("$ " + shlex.join(command), flush=True)
                    found = rate(name, command)
                    rates[name] += [] if found is None else [found]
            medians = {name: statistics.median(found) for name, found in rates.items() if found}
            failed |= len(medians) < len(PROGRAMS)
            for name, median in medians.items():
                print(
                    f"{shape}, batch {batch}: {name:20} {median:14,.0f} samples/s  "
                    f"(rounds: {len(rates[name])})"
                )
            if verdict(medians):
                print(f"{shape}, batch {batch}: {verdict(medians)}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
