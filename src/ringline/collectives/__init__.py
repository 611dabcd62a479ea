"""Collectives that move data between neighbours only, in the order of a `CollectiveSchedule`."""

from ringline.collectives._all_gather import all_gather as all_gather
