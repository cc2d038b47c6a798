"""The same table as coll_gloo.py with MPI, through mpi4py on numpy buffers (its calls add about
half a microsecond).

    mpirun -n 2 python coll_mpi.py [--seconds-per-size 0.6] [--max-bytes 4194304]
"""
import argparse
import statistics
import time

import numpy as np
from common import emit
from mpi4py import MPI

arguments = argparse.ArgumentParser()
arguments.add_argument("--seconds-per-size", type=float, default=0.6)
arguments.add_argument("--max-bytes", type=int, default=64 << 20)
a = arguments.parse_args()
world = MPI.COMM_WORLD
for name in ("all_reduce", "alltoall"):
    for size in [1 << k for k in range(10, 31, 2) if 1 << k <= a.max_bytes]:
        x, y = np.zeros(size // 4, np.float32), np.zeros(size // 4, np.float32)
        call = (
            (lambda: world.Allreduce(x, y))
            if name == "all_reduce"
            else (lambda: world.Alltoall(x, y))
        )
        for _ in range(3):
            call()
        start = time.perf_counter()
        call()
        repeats = world.bcast(
            max(10, min(20000, int(a.seconds_per_size / (time.perf_counter() - start)))), 0
        )
        world.Barrier()
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        if world.rank == 0:
            emit(
                lib="openmpi",
                op=name,
                procs=world.size,
                bytes=size,
                reps=len(times),
                p50_us=statistics.median(times) * 1e6,
                p90_us=sorted(times)[int(0.9 * len(times))] * 1e6,
                min_us=min(times) * 1e6,
            )
