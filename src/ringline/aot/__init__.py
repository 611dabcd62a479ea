"""Compile for TPU slices without them, and read the compiled program back."""

from ringline.aot._collectives import Collective as Collective
from ringline.aot._compile import Compiled as Compiled
from ringline.aot._compile import compile_for as compile_for
from ringline.aot._compile import read_compiled as read_compiled
from ringline.aot._links import transfer_s as transfer_s
from ringline.aot._memory import Buffer as Buffer
from ringline.aot._memory import DoesNotFitError as DoesNotFitError
from ringline.aot._memory import Memory as Memory
from ringline.aot._report import report as report
from ringline.aot._report import report_json as report_json
from ringline.aot._target import Target as Target
from ringline.aot._target import target as target
