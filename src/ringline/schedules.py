"""The pipeline schedules by name: `ringline.schedules.circular(stages=4, microbatches=8)`."""

from ringline.schedule._auto import zero_bubble as zero_bubble
from ringline.schedule._breadth_first import circular as circular
from ringline.schedule._breadth_first import linear as linear
from ringline.schedule._one_f_one_b import eager_one_f_one_b as eager_one_f_one_b
from ringline.schedule._one_f_one_b import interleaved_one_f_one_b as interleaved_one_f_one_b
from ringline.schedule._one_f_one_b import one_f_one_b as one_f_one_b
from ringline.schedule._v_memory import zero_bubble_v_half as zero_bubble_v_half
from ringline.schedule._v_memory import zero_bubble_v_min as zero_bubble_v_min
from ringline.schedule._v_shape import dualpipe_v as dualpipe_v
from ringline.schedule._v_shape import zero_bubble_v as zero_bubble_v
from ringline.schedule._zero_bubble import zero_bubble_h1 as zero_bubble_h1
from ringline.schedule._zero_bubble import zero_bubble_h2 as zero_bubble_h2
