"""The `pallas` backend: each collective as one TPU kernel of copies between neighbours.

A schedule becomes a plan of steps (`_plan`, `_matmul_plan`), these become instructions with their
repeats as loops (`_instructions`), and a kernel runs them (`_kernel`; `_gather`, `_scatter`,
`_matmul`). Arrays are cut and laid out for the chips in `_layout` and `_types`.
"""

from ringline.collectives.kernels._backend import check_pallas as check_pallas
from ringline.collectives.kernels._backend import interpret_effects as interpret_effects
from ringline.collectives.kernels._backend import pallas_all_gather as pallas_all_gather
from ringline.collectives.kernels._backend import (
    pallas_all_gather_matmul as pallas_all_gather_matmul,
)
from ringline.collectives.kernels._backend import (
    pallas_matmul_reduce_scatter as pallas_matmul_reduce_scatter,
)
from ringline.collectives.kernels._backend import pallas_reduce_scatter as pallas_reduce_scatter
