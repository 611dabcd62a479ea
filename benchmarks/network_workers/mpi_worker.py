"""What an MPI library does on one host of `benchmarks/network.py`, through mpi4py.

mpi_worker.py SIZES_MB ROUNDS
"""

import sys
from functools import partial

import numpy as np
from mpi4py import MPI
from rounds import merge, report, run_rounds


def main() -> None:
    sizes, rounds = sys.argv[1], int(sys.argv[2])
    world = MPI.COMM_WORLD
    version = MPI.Get_library_version().replace("\x00", "").strip().splitlines()[0]
    document: dict = {"library": version, "sizes": {}}
    for size in sizes.split(","):
        elements = round(float(size) * 1e6) // 4
        mine = np.full(elements, world.rank, np.float32)
        whole = np.empty((world.size, elements), np.float32)
        terms, summed = np.ones(world.size * elements, np.float32), np.empty_like(mine)
        subjects = {
            "MPICH Allgather": partial(world.Allgather, mine, whole),
            "MPICH Reduce_scatter": partial(world.Reduce_scatter_block, terms, summed),
        }
        found = world.gather(run_rounds(subjects, rounds, world.Barrier), root=0)
        right = np.arange(world.size, dtype=np.float32)[:, None]
        wrong = int((whole != right).sum() + (summed != world.size).sum())
        wrong = world.reduce(wrong, root=0)
        if found is not None:
            subjects = merge(found, rounds)
            document["sizes"][size] = {"subjects": subjects, "wrong": wrong}
    if world.rank == 0:
        report(document)


if __name__ == "__main__":
    main()
