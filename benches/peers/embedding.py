"""Headlong's tables and FBGEMM's in turn, on the same ids: lookup, backward and update of a step.

    python embedding.py --headlong ../../target/release/headlong
    python embedding.py --headlong ../../target/release/headlong --device cuda \\
        --tables 10 --rows 1680000 --dim 128 --ids 104857

The defaults are a shape that fits a small machine; the second command has the one that FBGEMM's
published figures of a GPU have. One id a sample, power law, SGD, f32. Theirs is what TorchRec uses,
`SplitTableBatchedEmbeddingBagsCodegen`, whose backward pass updates the rows; ours is `headlong
bench embedding`, whose line `step` is route, lookup and update. Each round runs both, in processes
of their own, the order reversed from one to the next. Prints a line of JSON for each run and the
medians with their ratio. Needs fbgemm-gpu (or fbgemm-gpu-cpu) and PyTorch; ends with 1 where either
program fails.
"""
import argparse
import json
import statistics
import subprocess
import sys
import time

arguments = argparse.ArgumentParser()
arguments.add_argument("--headlong", help="the program")
arguments.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
arguments.add_argument("--tables", type=int, default=8)
arguments.add_argument("--rows", type=int, default=100_000)
arguments.add_argument("--dim", type=int, default=128)
arguments.add_argument("--ids", type=int, default=16_384, help="ids of each table in a step")
arguments.add_argument("--alpha", type=float, default=1.05)
arguments.add_argument("--threads", type=int, default=1)
arguments.add_argument("--seconds", type=float, default=3)
arguments.add_argument("--rounds", type=int, default=3)
arguments.add_argument("--fbgemm", action="store_true", help="measure FBGEMM, and nothing else")
a = arguments.parse_args()

BATCHES = 8


def power_law_ids(generator):
    """Row of rank k in proportion to k^-alpha, by the inverse of the continuous law."""
    uniform = generator.random(a.ids)
    power = 1.0 - a.alpha
    if abs(power) < 1e-9:
        ranks = (a.rows + 1.0) ** uniform
    else:
        ranks = (1.0 + uniform * ((a.rows + 1.0) ** power - 1.0)) ** (1.0 / power)
    # Rows that are asked for often do not lie next to each other.
    return (ranks.astype("int64") - 1) * 7919 % a.rows


def fbgemm():
    """Microseconds a step of FBGEMM, as one line of JSON."""
    import numpy
    import torch
    import fbgemm_gpu  # noqa: F401: registers the operators
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice, EmbeddingLocation, SplitTableBatchedEmbeddingBagsCodegen)
    torch.set_num_threads(a.threads)
    on_gpu = a.device == "cuda"
    where = (EmbeddingLocation.DEVICE, ComputeDevice.CUDA) if on_gpu else (
        EmbeddingLocation.HOST, ComputeDevice.CPU)
    tables = SplitTableBatchedEmbeddingBagsCodegen(
        [(a.rows, a.dim, *where)] * a.tables, optimizer=EmbOptimType.EXACT_SGD, learning_rate=1e-6)
    generator = numpy.random.default_rng(1)
    offsets = torch.arange(a.tables * a.ids + 1, device=a.device)
    batches = [
        torch.from_numpy(numpy.concatenate([power_law_ids(generator) for _ in range(a.tables)]))
        .to(a.device) for _ in range(BATCHES)]
    gradient = torch.rand(a.ids, a.tables * a.dim, device=a.device)
    wait = torch.cuda.synchronize if on_gpu else lambda: None

    def step(index):
        tables(batches[index % BATCHES], offsets).backward(gradient)

    for index in range(3):
        step(index)
    wait()
    times, begun = [], time.perf_counter()
    while len(times) < 3 or time.perf_counter() - begun < a.seconds:
        block = time.perf_counter()
        for index in range(BATCHES):
            step(index)
        wait()
        times.append((time.perf_counter() - block) / BATCHES * 1e6)
    print(json.dumps({"step_us": statistics.median(times)}))


def commands():
    shape = ["--device", a.device, "--tables", str(a.tables), "--rows", str(a.rows), "--dim",
             str(a.dim), "--ids", str(a.ids), "--alpha", str(a.alpha), "--threads",
             str(a.threads), "--seconds", str(a.seconds)]
    return {
        "headlong": [a.headlong, "bench", "embedding", "--optimizer", "sgd", "--json", *shape],
        "fbgemm": [sys.executable, __file__, "--fbgemm", *shape],
    }


def compare():
    if not a.headlong:
        arguments.error("--headlong names the program")
    found = {name: [] for name in commands()}
    for number in range(a.rounds):
        turns = list(commands().items())
        for name, command in turns if number % 2 == 0 else turns[::-1]:
            ended = subprocess.run(command, capture_output=True, text=True)
            lines = [line for line in ended.stdout.splitlines() if line.startswith("{")]
            if ended.returncode or not lines:
                sys.exit(f"{name} failed: {' '.join(command)}\n{ended.stderr}")
            step_us = json.loads(lines[-1])["step_us"]
            found[name].append(step_us)
            print(json.dumps({"program": name, "round": number, "step_us": step_us}), flush=True)
    ours, theirs = (statistics.median(found[name]) for name in ("headlong", "fbgemm"))
    print(f"embedding step: headlong {ours:.0f} us, fbgemm {theirs:.0f} us: "
          f"ratio {theirs / ours:.2f}")


if a.fbgemm:
    fbgemm()
else:
    compare()
