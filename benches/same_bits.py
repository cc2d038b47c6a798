#!/usr/bin/env python3
"""Weights, losses and metrics of many short runs, of one program or of two side by side.

    benches/same_bits.py NEW [OLD] [--softcuda-new DIR] [--softcuda-old DIR] [--only WORD]
        [--out FILE]

Each case is a command line of `headlong train` on rows that this script writes. Printed is one line
a case: the digest of the weights, and a hash of all losses and metrics (as the log writes them,
every digit). With two programs, every line says whether both columns are equal, and the exit code
is 1 where one is not.
"""

import argparse, hashlib, json, os, pathlib, random, subprocess, sys, tempfile

SMALL = [
    "model.dim=8",
    "model.bottom=[16,8]",
    "model.top=[16,1]",
    "tables.rows=1000",
    "train.batch_size=64",
    "train.log_every=1",
    "train.sum_blocks=4",
]
DCNV2 = ["model.interaction=cross", "model.cross_layers=2", "model.cross_rank=8"]
METRICS = ("eval_samples", "auc", "logloss", "ne", "accuracy", "base_rate")


def case(name, *settings, flags=(), processes=0, cuda=False, hashed=False, resume=False):
    return dict(
        name=name,
        settings=settings,
        flags=list(flags),
        processes=processes,
        cuda=cuda,
        hashed=hashed,
        resume=resume,
    )


def cases():
    """Written before the first change of what runs in a step. Never shortened."""
    valid, every = ["--valid", "{valid}"], "eval.every=7"
    for precision in ("f32", "bf16", "f16"):
        yield case(f"one rank, {precision}", f"train.precision={precision}")
        yield case(
            f"one rank, {precision}, overlapped",
            f"train.precision={precision}",
            "run.schedule=overlapped",
        )
        yield case(f"one rank, {precision}, DCNv2", f"train.precision={precision}", *DCNV2)
    for ranks in (2, 4):
        for hybrid in ("off", "auto", "rows=50"):
            for schedule in ("serial", "overlapped"):
                yield case(
                    f"{ranks} ranks, hybrid {hybrid}, {schedule}",
                    f"run.ranks={ranks}",
                    f"run.hybrid={hybrid}",
                    f"run.schedule={schedule}",
                )
        yield case(f"{ranks} ranks, bf16", f"run.ranks={ranks}", "train.precision=bf16")
        yield case(
            f"{ranks} ranks, DCNv2, overlapped",
            f"run.ranks={ranks}",
            "run.schedule=overlapped",
            *DCNV2,
        )
        yield case(f"{ranks} ranks, vectors as bf16", f"run.ranks={ranks}", "comm.compress=bf16")
    nodes = ("run.ranks=4", "comm.ranks_per_node=2")
    for exchange in ("flat", "hierarchical"):
        for deduplicate in ("off", "rank", "node"):
            if (exchange, deduplicate) != ("flat", "node"):
                yield case(
                    f"2 nodes of 2, {exchange}, deduplicate {deduplicate}",
                    *nodes,
                    f"comm.exchange={exchange}",
                    f"comm.deduplicate={deduplicate}",
                    "run.hybrid=rows=50",
                    "run.schedule=overlapped",
                )
    yield case("2 nodes of 2, known ids", *nodes, "comm.ids=known")
    yield case("2 processes, tcp", "run.transport=tcp", processes=2)
    yield case(
        "2 processes, shared memory, overlapped",
        "run.transport=shm",
        "run.schedule=overlapped",
        processes=2,
    )
    yield case("4 processes, hybrid", "run.hybrid=rows=50", processes=4)
    for optimizer in ("sgd", "rowwise_adagrad", "lazy_adam", "ftrl"):
        yield case(f"sparse {optimizer}", f"optimizer.sparse.name={optimizer}", "run.ranks=2")
    yield case("dense adam", "optimizer.dense.name=adam")
    yield case("accumulated", "train.accumulate=2")
    for ids in ("modulo", "dictionary", "admitted"):
        yield case(f"ids {ids}", f"data.ids={ids}")
    yield case(
        "multi-hot",
        "multi_hot.sizes=[" + ",".join(["3"] * 26) + "]",
        "multi_hot.distribution=pareto",
        "tables.max_ids_per_sample=3",
        "run.ranks=2",
    )
    yield case("rows in bf16", "tables.dtype=bf16", "run.ranks=2")
    yield case("hashed tables, 1 rank", "train.sum_blocks=4", hashed=True)
    yield case("hashed tables, 2 ranks", "run.ranks=2", hashed=True)
    yield case("evaluations, 1 rank", every, flags=valid)
    yield case("evaluations, 2 ranks", every, "run.ranks=2", "run.schedule=overlapped", flags=valid)
    yield case("evaluation ranks", every, "run.ranks=2", flags=valid + ["--eval-ranks", "1"])
    yield case("resumed, 1 rank", flags=valid, resume=True)
    yield case(
        "resumed, 4 ranks, overlapped", "run.ranks=4", "run.schedule=overlapped", resume=True
    )
    for schedule in ("serial", "overlapped", "captured"):
        for ranks in (1, 2):
            yield case(
                f"device, {ranks} ranks, {schedule}",
                f"run.ranks={ranks}",
                f"run.schedule={schedule}",
                cuda=True,
            )
    for precision in ("bf16", "f16"):
        yield case(
            f"device, captured, {precision}",
            f"train.precision={precision}",
            "run.schedule=captured",
            cuda=True,
        )
    yield case("device, captured, DCNv2", "run.schedule=captured", *DCNV2, cuda=True)
    yield case(
        "device, 2 ranks, captured, hybrid",
        "run.ranks=2",
        "run.hybrid=rows=50",
        "run.schedule=captured",
        cuda=True,
    )
    yield case(
        "device, 4 ranks, 2 nodes, captured",
        "run.ranks=4",
        "comm.ranks_per_node=2",
        "comm.exchange=hierarchical",
        "run.schedule=captured",
        cuda=True,
    )
    yield case("device, evaluations", every, "run.schedule=captured", flags=valid, cuda=True)
    yield case("device, resumed", "run.schedule=captured", cuda=True, resume=True)


def write_rows(path, count, seed):
    """Rows in Criteo's format whose label follows the first integer and the first id."""
    draw = random.Random(seed)
    with open(path, "w") as out:
        for _ in range(count):
            first, ids = draw.randrange(50), [int(draw.random() ** 3 * 400) for _ in range(26)]
            label = draw.random() < 0.08 + 0.5 * (first > 25) + 0.3 * (ids[0] % 2)
            dense = ["" if draw.random() < 0.2 else str(draw.randrange(300)) for _ in range(12)]
            sparse = [
                "" if draw.random() > 0.95 else f"{one * 0x9E3779B1 % 2**32:08x}" for one in ids
            ]
            out.write("\t".join([str(int(label)), str(first), *dense, *sparse]) + "\n")


def run(program, softcuda, one, folder):
    """Digest of the weights, and hash of losses and metrics; or why there are none."""
    if one["cuda"] and not softcuda:
        return "no software device", ""
    work = pathlib.Path(tempfile.mkdtemp(dir=folder))
    environment = dict(os.environ, XDG_CACHE_HOME=str(folder / "cache"))
    if softcuda:
        environment.update(HEADLONG_CUDA_LIBS=str(softcuda), SOFTCUDA_DEVICES="8")
    arguments = [
        "train",
        "--data",
        str(folder / "rows.txt"),
        "--threads",
        "1",
        "--output-dir",
        str(work / "out"),
        "--log-json",
        str(work / "log.json"),
        "--device",
        "cuda" if one["cuda"] else "cpu",
    ]
    settings = {setting.split("=", 1)[0]: setting for setting in [*SMALL, *one["settings"]]}
    if one["hashed"]:
        tables = "".join(
            f'[[table]]\nname = "C{number}"\nkind = "hashed"\nrows = 1000\n' for number in (3, 4)
        )
        (work / "tables.toml").write_text(tables)
        arguments += ["--config", str(work / "tables.toml")]
    for setting in settings.values():
        arguments += ["--set", setting]
    arguments += [flag.format(valid=folder / "valid.txt") for flag in one["flags"]]
    if one["processes"]:
        arguments = ["launch", "-n", str(one["processes"]), "--", *arguments]
    parts = (
        [["--steps", "9"], ["--steps", "20", "--resume"]] if one["resume"] else [["--steps", "20"]]
    )
    for part in parts:
        keep = ["--checkpoint-dir", str(work / "kept")] if one["resume"] else []
        ended = subprocess.run(
            [program, *arguments, *part, *keep], capture_output=True, text=True, env=environment
        )
        if ended.returncode:
            return "failed: " + " ".join(ended.stderr.split())[-200:], ""
    events = [json.loads(line) for line in (work / "log.json").read_text().splitlines()]
    digest = next(event["weights_digest"] for event in reversed(events) if event["event"] == "done")
    seen = [(event["step"], event["loss"]) for event in events if event["event"] == "step"]
    seen += [
        [event["step"]] + [event.get(key) for key in METRICS]
        for event in events
        if event["event"] == "eval"
    ]
    return digest, hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:16]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("new")
    parser.add_argument("old", nargs="?")
    parser.add_argument("--softcuda-new", type=pathlib.Path)
    parser.add_argument("--softcuda-old", type=pathlib.Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=argparse.FileType("w"), default=sys.stdout)
    asked = parser.parse_args()
    differing = 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_rows(folder / "rows.txt", 1500, 7)
        write_rows(folder / "valid.txt", 300, 8)
        chosen = [one for one in cases() if asked.only in one["name"]]
        for one in chosen:
            columns = [run(asked.new, asked.softcuda_new, one, folder)]
            if asked.old:
                columns.append(run(asked.old, asked.softcuda_old, one, folder))
            is_good = len(set(columns)) == 1 and columns[0][1]
            differing += not is_good
            verdict = ("equal" if is_good else "DIFFERENT") if asked.old else ""
            print(
                "\t".join(
                    [one["name"], *[" ".join(column) for column in columns], verdict]
                ).rstrip(),
                file=asked.out,
                flush=True,
            )
    print(f"{len(chosen)} cases, {differing} differ or failed", file=sys.stderr)
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
