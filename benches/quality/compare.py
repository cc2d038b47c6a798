"""Headlong `--auto`, LightGBM, CatBoost and logistic regression, at defaults, on the same tables.

    python compare.py [--seeds 1 2 3] [--only tiny lists] [--folder FOLDER] [--headlong PATH]
        [--criteo FOLDER] [--contenders lightgbm headlong] [--out FILE] [--set KEY=VALUE]

Makes the tables of `tables.py` with each seed in FOLDER, and runs every contender on them, each in
a process of its own. CPU seconds (user and system, of all threads) and peak memory are those of
the whole process, start and reading included. A run whose predictions FOLDER has already is not
repeated: delete it for fresh ones. Prints, and writes to FILE, what is described in README.md.
"""
import argparse
import inspect
import json
import math
import os
import pathlib
import platform
import shutil
import subprocess
import sys

import numpy as np
import pandas as pd

import contenders
import tables

HERE = pathlib.Path(__file__).resolve().parent
PEERS = ["lightgbm", "catboost", "logistic"]


def headlong_commands(a, folder, name, output):
    """What a user of Headlong types; no row of the test is seen before it is predicted."""
    train = [a.headlong, "train", "--auto", "--data", folder / f"{name}-train.csv", "--label",
             tables.LABEL, "--holdout", "0", "--checkpoint-dir", output / "model"]
    predict = [a.headlong, "predict", "--checkpoint", output / "model", "--data",
               folder / f"{name}-test.csv", "--output", output / "predictions.csv"]
    # For us, not for the user: where other files go, the digests, and settings that are tried.
    train += ["--output-dir", output / "run", "--log-json", output / "log.jsonl"]
    train += [word for key in a.set for word in ("--set", key)]
    return [command + ["--threads", "1"] for command in (train, predict)]


def lines_of(contender):
    """Lines that a user writes."""
    if contender == "headlong":
        return 2
    body = inspect.getsource(getattr(contenders, contender)).splitlines()[2:]
    return len([line for line in body if line.strip()])


def measured(command, log):
    """Runs a command; its CPU seconds and the peak of its memory in MiB."""
    # Libraries of linear algebra have threads of their own.
    one = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with open(log, "ab") as out:
        process = subprocess.Popen(list(map(str, command)), stdout=out, stderr=out, cwd=log.parent,
                                   env=one)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{command[0]} failed: {log}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def run(a, contender, folder, name):
    """Predictions for the test rows, and what they cost; from the folder, where it has them."""
    output = folder / f"{name}-{contender}"
    kept = output / "predictions.npy"
    if not kept.exists():
        shutil.rmtree(output, ignore_errors=True)
        output.mkdir(parents=True)
        if contender == "headlong":
            commands = headlong_commands(a, folder, name, output)
        else:
            commands = [[sys.executable, HERE / "contenders.py", contender, folder, name, kept]]
        costs = [measured(command, output / "log.txt") for command in commands]
        facts = {"cpu_s": sum(cpu for cpu, _ in costs), "peak_mib": max(mib for _, mib in costs)}
        if contender == "headlong":
            predicted = pd.read_csv(output / "predictions.csv")
            np.save(kept, predicted["probability"].to_numpy())
            events = map(json.loads, open(output / "log.jsonl"))
            facts["weights"] = [e["weights_digest"] for e in events if "weights_digest" in e]
        (output / "costs.json").write_text(json.dumps(facts))
    return np.load(kept), json.loads((output / "costs.json").read_text())


def log_loss(labels, p):
    """Mean of -ln of what the label was given."""
    p = np.clip(p, 1e-7, 1 - 1e-7)
    return -np.log(np.where(labels == 1, p, 1 - p)).mean()


def delong(labels, ours, theirs):
    """The difference of two AUCs on the same rows, and its variance (DeLong et al. 1988)."""
    parts = []
    for scores in (ours, theirs):
        ranks = pd.Series(scores).rank().to_numpy()
        of_ones, of_zeros = scores[labels == 1], scores[labels == 0]
        above = (ranks[labels == 1] - pd.Series(of_ones).rank().to_numpy()) / len(of_zeros)
        below = 1 - (ranks[labels == 0] - pd.Series(of_zeros).rank().to_numpy()) / len(of_ones)
        parts.append((above, below))
    (one, other) = parts
    ones, zeros = one[0] - other[0], one[1] - other[1]
    return ones.mean(), ones.var(ddof=1) / len(ones) + zeros.var(ddof=1) / len(zeros)


def compare(a, name):
    """A line for each contender on one table, over all seeds."""
    folders = [a.folder / f"seed-{seed}" for seed in a.seeds]
    if name == "criteo":
        folders = [a.folder]
    cells = []
    for seed, folder in zip(a.seeds, folders):
        if not (folder / f"{name}.json").exists():
            made = (name, seed) if name != "criteo" else (a.criteo,)
            (tables.make_criteo if name == "criteo" else tables.make)(folder, *made)
        best = json.loads((folder / f"{name}.json").read_text())["best_auc"]
        labels = pd.read_csv(folder / f"{name}-test.csv", usecols=[tables.LABEL])
        labels = labels[tables.LABEL].to_numpy()
        for contender in a.contenders:
            p, costs = run(a, contender, folder, name)
            cells.append({"table": name, "seed": seed, "contender": contender, "best_auc": best,
                          "auc": tables.auc(labels, p), "log_loss": log_loss(labels, p)} | costs)
            if "headlong" in a.contenders and contender != "headlong":
                ours, _ = run(a, "headlong", folder, name)
                cells[-1]["ours_above"], cells[-1]["variance"] = delong(labels, ours, p)
    lines = []
    for contender in a.contenders:
        own = pd.DataFrame([cell for cell in cells if cell["contender"] == contender])
        line = {"table": name, "contender": contender, "lines": lines_of(contender)}
        line |= {key: own[key].mean() for key in ("auc", "log_loss", "cpu_s", "peak_mib")}
        known = own["best_auc"].notna().all()
        line["to_best"] = (own["best_auc"] - own["auc"]).mean() if known else None
        if "variance" in own:
            line["ours_above"] = own["ours_above"].mean()
            line["z"] = line["ours_above"] / math.sqrt(own["variance"].sum()) * len(own)
        lines.append(line)
    return cells, lines


def verdict(lines):
    """Whether Headlong is better than the better one of LightGBM and CatBoost, and its cost."""
    by_name = {line["contender"]: line for line in lines}
    rivals = [by_name[name] for name in ("lightgbm", "catboost") if name in by_name]
    if not rivals or "headlong" not in by_name:
        return None
    better = max(rivals, key=lambda line: line["auc"])
    word = "above" if better["z"] > 1.96 else "below" if better["z"] < -1.96 else "level"
    return {"table": lines[0]["table"], "rival": better["contender"], "word": word,
            "difference": better["ours_above"], "z": better["z"],
            "cost": by_name["headlong"]["cpu_s"] / better["cpu_s"]}


def shown(line):
    """A line of the table of results."""
    def blank(value, form):
        return "" if value is None else format(value, form)

    return (f"{line['table']:13} {line['contender']:9} {line['auc']:.4f} "
            f"{blank(line['to_best'], '.4f'):>7} {line['log_loss']:.4f} "
            f"{blank(line.get('ours_above'), '+.4f'):>8} {blank(line.get('z'), '+.1f'):>6} "
            f"{line['cpu_s']:8.2f} {line['peak_mib']:6.0f} {line['lines']:5}")


def report(say, cells, lines, verdicts):
    """Everything that is kept."""
    say("table         contender  AUC     to best log loss  ours +   z     CPU s    MiB  lines")
    for line in lines:
        say(shown(line))
    say("\nAgainst the better one of LightGBM and CatBoost (z beyond 1.96: p < 0.05):")
    for v in verdicts:
        say(f"{v['table']:13} {v['word']:6} {v['rival']:9} {v['difference']:+.4f} "
            f"(z {v['z']:+.1f}), at 1/{1 / v['cost']:.1f} of its CPU seconds")
    say("\nDigests of Headlong's weights (table, seed; one of each model):")
    for cell in cells:
        if "weights" in cell:
            say(f"{cell['table']} {cell['seed']} {' '.join(cell['weights'])}")


def processor():
    """Its name, as Linux has it, else its kind."""
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    found = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return found[0] if found else platform.machine()


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--seeds", nargs="*", type=int, default=[1, 2, 3])
    arguments.add_argument("--only", nargs="*", default=[*tables.TABLES, "criteo"])
    arguments.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("quality"))
    arguments.add_argument("--headlong", default=str(HERE.parents[1] / "target/release/headlong"))
    arguments.add_argument("--criteo", type=pathlib.Path,
                           default=HERE.parents[2] / "shared/data/criteo")
    arguments.add_argument("--contenders", nargs="*", default=["headlong", *PEERS])
    arguments.add_argument("--out", default="")
    arguments.add_argument("--set", nargs="*", default=[], help="settings of Headlong to try")
    a = arguments.parse_args()
    a.folder = a.folder.resolve()
    if not a.criteo.exists():
        a.only = [name for name in a.only if name != "criteo"]
    results = [compare(a, name) for name in a.only]
    cells, lines = [c for cs, _ in results for c in cs], [x for _, xs in results for x in xs]
    out = open(a.out, "w") if a.out else None

    def say(text):
        print(text, flush=True)
        if out:
            print(text, file=out)

    version = subprocess.run([a.headlong, "--version"], capture_output=True, text=True).stdout
    say(f"{version.strip()}, {processor()}, seeds {a.seeds}\n")
    report(say, cells, lines, list(filter(None, (verdict(lines) for _, lines in results))))


if __name__ == "__main__":
    main()
