"""Measure the collectives: the cases, what is run beside each, and that every element is right."""

from ringline.collectives.measure._measure import Row as Row
from ringline.collectives.measure._measure import Setup as Setup
from ringline.collectives.measure._measure import measure as measure
from ringline.collectives.measure._measure import sweep as sweep
from ringline.collectives.measure._measure import targeted as targeted
from ringline.collectives.measure._operations import OPERATIONS as OPERATIONS
from ringline.collectives.measure._operations import Operation as Operation
from ringline.collectives.measure._shapes import Case as Case
