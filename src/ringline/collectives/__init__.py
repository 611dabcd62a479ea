"""Collectives that move data between neighbours only, in the order of a `CollectiveSchedule`."""

from ringline.collectives._all_gather import all_gather as all_gather
from ringline.collectives._all_reduce import all_reduce as all_reduce
from ringline.collectives._fused import all_gather_matmul as all_gather_matmul
from ringline.collectives._fused import matmul_reduce_scatter as matmul_reduce_scatter
from ringline.collectives._reduce_scatter import reduce_scatter as reduce_scatter
