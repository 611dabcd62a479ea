"""The time of a `Program` on links and devices, as a `Timeline` of events. No JAX needed."""

from ringline.simulate._collective import CollectiveRun as CollectiveRun
from ringline.simulate._collective import collective_bound_s as collective_bound_s
from ringline.simulate._collective import collective_s as collective_s
from ringline.simulate._collective import simulate_collective as simulate_collective
from ringline.simulate._engine import simulate_program as simulate_program
from ringline.simulate._link import Link as Link
from ringline.simulate._memory import peak_live as peak_live
from ringline.simulate._step import simulate as simulate
from ringline.simulate._timeline import Event as Event
from ringline.simulate._timeline import Timeline as Timeline
from ringline.simulate._timeline import union as union
