"""What the tests of compiled programs share: one that is written by hand."""

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest

HANDLER = '_xla_host_transfer_handler_name="xla_megascale_runtime"'
# Two slices of four devices; a loop of 5 ticks with one transfer behind a stage's computation
# and one that nothing hides; a gather before it, and an asynchronous permute inside a slice.
PROGRAM = f"""HloModule jit_step, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}}

%product (p: bf16[256,512], q: bf16[512,128]) -> bf16[256,128] {{
  %p = bf16[256,512]{{1,0:T(8,128)(2,1)}} parameter(0)
  %q = bf16[512,128]{{1,0:T(8,128)(2,1)}} parameter(1)
  ROOT %convolution.1 = bf16[256,128]{{1,0}} convolution(%p, %q), dim_labels=bf_io->bf
}}

%idle (x: bf16[256,128]) -> bf16[256,128] {{
  ROOT %x = bf16[256,128]{{1,0}} parameter(0)
}}

%stage (x.1: bf16[256,128]) -> bf16[256,128] {{
  %x.1 = bf16[256,128]{{1,0}} parameter(0)
  ROOT %fusion.1 = bf16[256,128]{{1,0}} fusion(%x.1), kind=kOutput, calls=%product, \
backend_config={{"estimated_cycles":"1050000"}}
}}

%body (state: (s32[], bf16[256,128])) -> (s32[], bf16[256,128]) {{
  %state = (s32[], bf16[256,128]{{1,0:T(8,128)(2,1)}}) parameter(0)
  %y = bf16[256,128]{{1,0}} get-tuple-element(%state), index=1
  %i = s32[] get-tuple-element(%state), index=0
  %after-all.1 = token[] after-all()
  %send.1 = (bf16[256,128]{{1,0}}, u32[], token[]) send(%y, %after-all.1), channel_id=1, \
is_host_transfer=true, frontend_attributes={{{HANDLER},_xla_host_transfer_rendezvous="permute.1",\
_xla_megascale_target={{{{0->10}},{{1->11}},{{2->12}},{{3->13}}}},\
_xla_megascale_transfer_type="ONE_TO_ONE"}}
  %recv.1 = (bf16[256,128]{{1,0}}, u32[], token[]) recv(%after-all.1), channel_id=2, \
is_host_transfer=true, frontend_attributes={{{HANDLER},_xla_host_transfer_rendezvous="permute.1",\
_xla_megascale_target={{{{0->10}},{{1->11}},{{2->12}},{{3->13}}}},\
_xla_megascale_transfer_type="ONE_TO_ONE"}}
  %conditional.1 = bf16[256,128]{{1,0}} conditional(%i, %y, %y), \
branch_computations={{%idle, %stage}}
  %send-done.1 = token[] send-done(%send.1), channel_id=1, is_host_transfer=true
  %recv-done.1 = (bf16[256,128]{{1,0}}, token[]) recv-done(%recv.1), channel_id=2, \
is_host_transfer=true
  %send.2 = (f32[64]{{0}}, u32[], token[]) send(%y, %after-all.1), channel_id=3, \
is_host_transfer=true, frontend_attributes={{{HANDLER},_xla_host_transfer_rendezvous="sum.2",\
_xla_megascale_target="{{1,2}}x{{0:3}}",_xla_megascale_transfer_type="ALL_REDUCE"}}
  %recv.2 = (f32[64]{{0}}, u32[], token[]) recv(%after-all.1), channel_id=4, \
is_host_transfer=true, frontend_attributes={{{HANDLER},_xla_host_transfer_rendezvous="sum.2",\
_xla_megascale_target="{{1,2}}x{{0:3}}",_xla_megascale_transfer_type="ALL_REDUCE"}}
  %send-done.2 = token[] send-done(%send.2), channel_id=3, is_host_transfer=true
  %recv-done.2 = (f32[64]{{0}}, token[]) recv-done(%recv.2), channel_id=4, is_host_transfer=true
  ROOT %tuple.1 = (s32[], bf16[256,128]{{1,0}}) tuple(%i, %conditional.1)
}}

%condition (state.1: (s32[], bf16[256,128])) -> pred[] {{
  %state.1 = (s32[], bf16[256,128]{{1,0}}) parameter(0)
  %limit = s32[]{{:T(128)}} constant(5)
  %i.1 = s32[] get-tuple-element(%state.1), index=0
  ROOT %less = pred[] compare(%i.1, %limit), direction=LT
}}

ENTRY %main (w: bf16[64,128]) -> bf16[256,128] {{
  %w = bf16[64,128]{{1,0}} parameter(0), metadata={{op_name="w"}}
  %all-gather.1 = bf16[256,128]{{1,0}} all-gather(%w), channel_id=5, \
replica_groups={{{{0,1,2,3}}}}, dimensions={{0}}, use_global_device_ids=true
  %permute-start.1 = (bf16[64,128]{{1,0}}, bf16[64,128]{{1,0}}, u32[], u32[]) \
collective-permute-start(%w), channel_id=6, source_target_pairs={{{{0,1}},{{1,2}},{{2,3}},{{3,0}}}}
  %copy.1 = bf16[256,128]{{1,0}} copy(%all-gather.1), \
backend_config={{"estimated_cycles":"2100"}}
  %permute-done.1 = bf16[64,128]{{1,0}} collective-permute-done(%permute-start.1)
  %zero = s32[] constant(0)
  %init = (s32[], bf16[256,128]{{1,0}}) tuple(%zero, %copy.1)
  %while.1 = (s32[], bf16[256,128]{{1,0}}) while(%init), condition=%condition, body=%body
  ROOT %out = bf16[256,128]{{1,0}} get-tuple-element(%while.1), index=1
}}
"""


@dataclass(frozen=True)
class Device:
    """A device of the hand-written program's mesh."""

    id: int
    slice_index: int


@pytest.fixture
def program():
    """The text of a small scheduled program."""
    return PROGRAM


@pytest.fixture
def two_slices():
    """A mesh of 2 stages on two slices of 4 devices."""
    devices = [Device(10 * s + i, s) for s in range(2) for i in range(4)]
    grid = np.array(devices, dtype=object).reshape(2, 4)
    return SimpleNamespace(devices=grid, axis_names=("stage", "fsdp"))
