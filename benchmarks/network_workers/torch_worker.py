"""What torch.distributed over gloo does on one host of `benchmarks/network.py`.

torch_worker.py SIZES_MB ROUNDS
"""

import os
import sys
from functools import partial

import torch
import torch.distributed as dist
from rounds import merge, report, run_rounds


def main() -> None:
    sizes, rounds = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    host, count = int(os.environ["JAX_PROCESS_ID"]), int(os.environ["JAX_NUM_PROCESSES"])
    where = os.environ["JAX_COORDINATOR_ADDRESS"]
    dist.init_process_group("gloo", init_method=f"tcp://{where}", rank=host, world_size=count)
    document: dict = {"library": f"torch {torch.__version__}", "sizes": {}}
    for size in sizes.split(","):
        elements = round(float(size) * 1e6) // 4
        mine, summed = torch.full((elements,), float(host)), torch.empty(elements)
        whole, terms = torch.empty(count * elements), torch.ones(count * elements)
        subjects = {
            "torch gloo all_gather": partial(dist.all_gather_into_tensor, whole, mine),
            "torch gloo reduce_scatter": partial(dist.reduce_scatter_tensor, summed, terms),
        }
        found: list = [None] * count
        dist.all_gather_object(found, run_rounds(subjects, rounds, dist.barrier))
        right = torch.arange(count, dtype=torch.float32)[:, None]
        wrong = torch.count_nonzero(whole.view(count, -1) != right)
        wrong += torch.count_nonzero(summed != count)
        dist.all_reduce(wrong)
        document["sizes"][size] = {"subjects": merge(found, rounds), "wrong": int(wrong)}
    if host == 0:
        report(document)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
