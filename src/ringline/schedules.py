"""The pipeline schedules by name: `ringline.schedules.circular(stages=4, microbatches=8)`."""

from ringline.schedule._generators import circular as circular
from ringline.schedule._generators import linear as linear
