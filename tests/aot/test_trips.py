"""How often a loop's body runs, by its counter."""

import pytest

from ringline.aot._hlo import parse
from ringline.aot._trips import trips

LOOP = """HloModule loop, is_scheduled=true

%condition (state: (f32[8], s32[])) -> pred[] {{
  %state = (f32[8]{{0}}, s32[]) parameter(0)
  %limit = s32[] constant({limit})
  %i = s32[] get-tuple-element(%state), index=1
  ROOT %less = pred[] compare(%i, %limit), direction={direction}
}}

%body (state.1: (f32[8], s32[])) -> (f32[8], s32[]) {{
  %state.1 = (f32[8]{{0}}, s32[]) parameter(0)
  %one = s32[] constant(1)
  %other = s32[] constant({step})
  %x = f32[8]{{0}} get-tuple-element(%state.1), index=0
  %i.1 = s32[] get-tuple-element(%state.1), index=1
  %next = s32[] add(%i.1, %one)
  %after = s32[] add(%other, %next)
  %kept = s32[] copy(%{made})
  ROOT %tuple.1 = (f32[8]{{0}}, s32[]) tuple(%x, %kept)
}}

ENTRY %main (x.2: f32[8]) -> (f32[8], s32[]) {{
  %x.2 = f32[8]{{0}} parameter(0)
  %first = s32[] constant({first})
  %init = (f32[8]{{0}}, s32[]) tuple(%x.2, %first)
  ROOT %while.1 = (f32[8]{{0}}, s32[]) while(%init), condition=%condition, body=%body{known}
}}
"""


def counted(limit=5, direction="LT", step=1, made="next", first=0, known=""):
    module = parse(LOOP.format(**locals()))
    loop = module.root("main")
    assert loop is not None
    return trips(module, "main", loop)


@pytest.mark.parametrize(
    ("loop", "times"),
    [
        ({}, 5),
        ({"made": "after"}, 3),  # 0, 2, 4
        ({"made": "after", "limit": 4}, 2),
        ({"made": "after", "step": 3, "limit": 8}, 2),  # 0, 4
        ({"first": 1}, 4),
        ({"first": -2, "made": "after"}, 4),  # -2, 0, 2, 4
        ({"first": 7}, 0),
        ({"limit": -1}, 0),
        ({"direction": "NE"}, None),
        ({"known": ', backend_config={"known_trip_count":{"n":"9"}}'}, 9),
        ({"made": "other"}, 5),  # what does not count by a step is taken to count by one
    ],
    ids=str,
)
def test_trips_of_a_loop(loop, times):
    assert counted(**loop) == times
