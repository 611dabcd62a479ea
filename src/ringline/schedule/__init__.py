"""Schedules as plain data: what moves and runs where, in which order.

`CollectiveSchedule` and `PipelineSchedule` both lower to a `Program`, which is what everything
else reads. Nothing here needs JAX.
"""

from ringline.schedule._actions import Action as Action
from ringline.schedule._all_gather import all_gather as all_gather
from ringline.schedule._auto import zero_bubble as zero_bubble
from ringline.schedule._breadth_first import circular as circular
from ringline.schedule._breadth_first import linear as linear
from ringline.schedule._check import check_program as check_program
from ringline.schedule._collective import CollectiveSchedule as CollectiveSchedule
from ringline.schedule._errors import ScheduleError as ScheduleError
from ringline.schedule._grid_all_gather import grid_all_gather as grid_all_gather
from ringline.schedule._grid_all_gather import relabel as relabel
from ringline.schedule._grid_all_gather import snake_order as snake_order
from ringline.schedule._liveness import lifetimes as lifetimes
from ringline.schedule._liveness import value_slots as value_slots
from ringline.schedule._named import named_schedule as named_schedule
from ringline.schedule._named import schedule_names as schedule_names
from ringline.schedule._one_f_one_b import eager_one_f_one_b as eager_one_f_one_b
from ringline.schedule._one_f_one_b import interleaved_one_f_one_b as interleaved_one_f_one_b
from ringline.schedule._one_f_one_b import one_f_one_b as one_f_one_b
from ringline.schedule._parse_program import parse_program as parse_program
from ringline.schedule._pipeline import PipelineSchedule as PipelineSchedule
from ringline.schedule._pipeline import parse_pipeline as parse_pipeline
from ringline.schedule._program import Compute as Compute
from ringline.schedule._program import Instruction as Instruction
from ringline.schedule._program import Program as Program
from ringline.schedule._program import Receive as Receive
from ringline.schedule._program import Send as Send
from ringline.schedule._program import Value as Value
from ringline.schedule._receive_early import receive_early as receive_early
from ringline.schedule._reduce import all_reduce as all_reduce
from ringline.schedule._reduce import reduce_scatter as reduce_scatter
from ringline.schedule._slots import allocate_slots as allocate_slots
from ringline.schedule._smallest import Smallest as Smallest
from ringline.schedule._smallest import smallest_configurations as smallest_configurations
from ringline.schedule._smallest import smallest_hanging_bytes as smallest_hanging_bytes
from ringline.schedule._split import merge_backward as merge_backward
from ringline.schedule._split import split_backward as split_backward
from ringline.schedule._ticks import Placed as Placed
from ringline.schedule._ticks import place_on_ticks as place_on_ticks
from ringline.schedule._transfer import Transfer as Transfer
from ringline.schedule._v_memory import zero_bubble_v_half as zero_bubble_v_half
from ringline.schedule._v_memory import zero_bubble_v_min as zero_bubble_v_min
from ringline.schedule._v_shape import dualpipe_v as dualpipe_v
from ringline.schedule._v_shape import zero_bubble_v as zero_bubble_v
from ringline.schedule._verdict import FlowControl as FlowControl
from ringline.schedule._verdict import Verdict as Verdict
from ringline.schedule._verdict import check_collective as check_collective
from ringline.schedule._zero_bubble import zero_bubble_h1 as zero_bubble_h1
from ringline.schedule._zero_bubble import zero_bubble_h2 as zero_bubble_h2
