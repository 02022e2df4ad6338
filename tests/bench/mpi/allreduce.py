"""Time MPI's allreduce: run by ``exchange.py`` under mpirun, with an interpreter that has mpi4py.

    mpirun -n 4 python tests/bench/mpi/allreduce.py SIZE:REPEATS ...

Every rank's vector is ready; the ends of the sums are checked. The time of one is measured from the
end of the previous one, so that a rank which starts late is no gain. Prints seconds by size, in
JSON.
"""

import json
import sys
import time

import numpy as np
from mpi4py import MPI


def main() -> None:
    """Time each size as often as requested."""
    world = MPI.COMM_WORLD
    times: dict[str, list[float]] = {}
    for entry in sys.argv[1:]:
        size, repeats = (int(part) for part in entry.split(":"))
        part, total = np.arange(size, dtype=float) + world.rank, np.empty(size)
        times[str(size)] = []
        begin = 0.0
        for repeat in range(repeats + 3):
            part[0] = part[-1] = repeat
            world.Allreduce(part, total)
            ended = time.perf_counter()
            assert total[0] == total[-1] == world.size * repeat
            if repeat >= 3:  # the first ones set up connections and buffers
                times[str(size)].append(ended - begin)
            begin = ended
    if world.rank == 0:
        print(json.dumps(times))


if __name__ == "__main__":
    main()
