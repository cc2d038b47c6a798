"""Latency of torch.distributed's Gloo on loopback: all-reduce (sum, f32) and all-to-all; p50 of
rank 0.

    python coll_gloo.py --procs 2 [--seconds-per-size 0.6] [--max-bytes 4194304]

Size: bytes of one rank's buffer.
"""
import argparse
import os
import socket
import statistics
import time

from common import emit


def worker(rank, procs, port, seconds, max_bytes):
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo"
    )
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=procs)
    operations = (("all_reduce", lambda x, y: dist.all_reduce(x)),
                  ("alltoall", lambda x, y: dist.all_to_all_single(y, x)))
    for name, call in operations:
        for size in [1 << k for k in range(10, 31, 2) if 1 << k <= max_bytes]:
            x, y = torch.zeros(size // 4), torch.zeros(size // 4)
            for _ in range(3):
                call(x, y)
            start = time.perf_counter()
            call(x, y)
            repeats = torch.tensor(
                [max(10, min(3000, int(seconds / (time.perf_counter() - start))))]
            )
            dist.broadcast(repeats, 0)
            dist.barrier()
            times = []
            for _ in range(int(repeats)):
                start = time.perf_counter()
                call(x, y)
                times.append(time.perf_counter() - start)
            if rank == 0:
                emit(
                    lib="gloo",
                    op=name,
                    procs=procs,
                    bytes=size,
                    reps=len(times),
                    p50_us=statistics.median(times) * 1e6,
                    p90_us=sorted(times)[int(0.9 * len(times))] * 1e6,
                    min_us=min(times) * 1e6,
                )
    dist.destroy_process_group()


if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--procs", type=int, default=2)
    arguments.add_argument("--seconds-per-size", type=float, default=0.6)
    arguments.add_argument("--max-bytes", type=int, default=64 << 20)
    a = arguments.parse_args()
    import torch.multiprocessing as mp
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(worker, (a.procs, port, a.seconds_per_size, a.max_bytes), nprocs=a.procs)
