"""Time MPI's allreduce: run by ``exchange.py`` under mpirun, with an interpreter that has mpi4py.

    mpirun -n 4 python tests/bench/mpi_exchange.py SIZE:REPEATS ...

Every rank's vector lies ready; the ends of the sums are checked. Prints seconds by size, as JSON.
"""

import json
import sys
import time

import numpy as np
from mpi4py import MPI


def main() -> None:
    """Time as many as each size asks for."""
    world = MPI.COMM_WORLD
    times: dict[str, list[float]] = {}
    for entry in sys.argv[1:]:
        size, repeats = (int(part) for part in entry.split(":"))
        part, total = np.arange(size, dtype=float) + world.rank, np.empty(size)
        times[str(size)] = []
        for repeat in range(repeats + 3):
            part[0] = part[-1] = repeat
            world.Barrier()
            begin = time.perf_counter()
            world.Allreduce(part, total)
            seconds = time.perf_counter() - begin
            assert total[0] == total[-1] == world.size * repeat
            if repeat >= 3:  # the first ones set connections and buffers up
                times[str(size)].append(seconds)
    if world.rank == 0:
        print(json.dumps(times))


if __name__ == "__main__":
    main()
