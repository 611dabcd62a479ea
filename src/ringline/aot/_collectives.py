"""The collectives of a compiled program: where they run, what they move, what hides them.

Inside a slice a collective is one instruction, or a start and a done, or lies in fusions (see
`_in_fusions`). Between slices it is a
`send` and a `recv` with their `-done`, on the hosts' transfer runtime; the four that share a
rendezvous are one collective here.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ringline.aot._groups import Axes
from ringline.aot._hlo import Instruction, Module, shape_bytes
from ringline.aot._in_fusions import KINDS, Part, parts
from ringline.aot._links import transfer_s
from ringline.aot._target import Target
from ringline.aot._walk import Context, Step, Walk

if TYPE_CHECKING:
    from jax.sharding import Mesh

Link = Literal["ICI", "DCN"]
_BETWEEN = {
    "ONE_TO_ONE": "collective-permute",
    "ALL_REDUCE": "all-reduce",
    "ALL_GATHER": "all-gather",
    "ALL_TO_ALL": "all-to-all",
    "REDUCE_SCATTER": "reduce-scatter",
}


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective at its place in the scheduled program.

    Attributes:
        name: of its first instruction.
        kind: such as `collective-permute`.
        link: `ICI` inside a slice, `DCN` between slices.
        axis: the mesh axes it runs along, joined by commas; `?` where its groups are none.
        bytes: the larger of what a device gives and what it gets.
        in_loop: the innermost loop around it; None outside loops.
        times_per_step: how often a step runs it, at most where it stands in a branch.
        times_known: whether it is; a loop whose trips the program does not say counts as one.
        in_branch: whether a condition may skip it.
        asynchronous: whether computation can run between its start and its end.
        spans_compute_us: computation between all its starts and the first of its ends, by the
            compiler's estimate.
        transfer_us: how long the target's links need.
        computation: where it is.
        posted: the instructions that start it, in order.
        ended: those that wait for its end.
        starts_us: when all of it is posted, from the start of its computation.
        ends_us: when the first wait for it begins.
    """

    name: str
    kind: str
    link: Link
    axis: str
    bytes: float
    in_loop: str | None
    times_per_step: int
    times_known: bool
    in_branch: bool
    asynchronous: bool
    spans_compute_us: float
    transfer_us: float
    computation: str
    posted: tuple[str, ...]
    ended: tuple[str, ...]
    starts_us: float
    ends_us: float

    @property
    def exposed_us(self) -> float:
        """What of the transfer no computation hides, each time."""
        return max(0.0, self.transfer_us - self.spans_compute_us)

    @property
    def exposed(self) -> bool:
        """Whether the transfer needs longer than the computation that it spans."""
        return self.exposed_us > 0


def find_collectives(
    module: Module, walk: Walk, target: Target, mesh: "Mesh | None"
) -> tuple[Collective, ...]:
    """Every collective of the program, in scheduled order."""
    axes = Axes(mesh)
    found = []
    for context in walk.contexts():
        steps = walk.steps(context.computation)
        for seen in _sightings(module, context.computation, steps):
            found.append(_collective(context, seen, module, target, axes))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Seen:
    """One collective among the steps of a computation.

    Attributes:
        kind: such as `all-gather`.
        link: its network.
        posts: what starts it.
        ends: what waits for its end.
        cores: the instructions that say what moves, and between which devices.
        place: the computation that they are in.
    """

    kind: str
    link: Link
    posts: list[Step]
    ends: list[Step]
    cores: list[Instruction]
    place: str


def _sightings(module: Module, computation: str, steps: list[Step]) -> Iterator[_Seen]:
    """The collectives among `steps`, in order of what starts them."""
    done: dict[str, list[Step]] = defaultdict(list)
    hosts: dict[str, list[Step]] = defaultdict(list)
    begun: dict[str, str] = {}  # an update goes on with what a start began
    updates: dict[str, list[Step]] = defaultdict(list)
    for step in steps:
        opcode = step.instruction.opcode
        if opcode == "async-update":
            began = step.instruction.operands[0]
            began = begun[step.instruction.name] = begun.get(began, began)
            updates[began].append(step)
        elif opcode.endswith("-done"):
            for operand in step.instruction.operands:
                done[begun.get(operand, operand)].append(step)
        elif opcode in ("send", "recv") and _rendezvous(step.instruction):
            hosts[_rendezvous(step.instruction)].append(step)
    fused = _fused(module, steps)
    met: set[str] = set()
    for step in steps:
        core = step.instruction
        opcode, name = core.opcode, core.name
        if opcode in KINDS:
            yield _Seen(opcode, "ICI", [step], [], [core], computation)
        elif opcode.removesuffix("-start") in KINDS:
            kind = opcode.removesuffix("-start")
            yield _Seen(kind, "ICI", [step], done[name], [core], computation)
        elif opcode == "async-start" and (inner := _inside(module, core)):
            place, core = inner
            yield _Seen(core.opcode, "ICI", [step, *updates[name]], done[name], [core], place)
        elif opcode == "fusion":
            yield from fused[name]
        elif opcode in ("send", "recv"):
            key = _rendezvous(core)
            if key and key not in met:
                met.add(key)
                posts = hosts[key]
                ends = [end for post in posts for end in done[post.instruction.name]]
                cores = [post.instruction for post in posts]
                yield _Seen(_between(core), "DCN", posts, ends, cores, computation)


def _fused(module: Module, steps: list[Step]) -> dict[str, list[_Seen]]:
    """The collectives in fusions, by the fusion that starts them."""
    found: dict[str, list[_Seen]] = defaultdict(list)
    running: dict[str, _Seen] = {}
    for step in steps:
        if step.instruction.opcode != "fusion":
            continue
        for part in parts(module, step.instruction):
            if part.starts or part.channel not in running:
                seen = _seen_in(part, step)
                # An end whose start is elsewhere was met there.
                if not part.ends:
                    found[step.instruction.name].append(seen)
                if part.starts:
                    running[part.channel] = seen
            elif part.ends:
                running.pop(part.channel).ends.append(step)
    return found


def _seen_in(part: Part, step: Step) -> _Seen:
    return _Seen(part.kind, "ICI", [step], [], [part.collective], part.computation)


def _collective(
    context: Context, seen: _Seen, module: Module, target: Target, axes: Axes
) -> Collective:
    posts, ends = seen.posts, seen.ends
    size = max(_bytes(module, seen.place, core) for core in seen.cores)
    group = axes.group(seen.cores[0])
    per_us = target.clock_hz / 1e6
    posted = max(post.end for post in posts)
    # A wait that is not in this computation is at its end.
    ended = min((end.start for end in ends), default=posted)
    return Collective(
        name=posts[0].instruction.name,
        kind=seen.kind,
        link=seen.link,
        axis=group.axis,
        bytes=size,
        in_loop=context.loop or None,
        times_per_step=context.times,
        times_known=context.certain,
        in_branch=context.conditional,
        asynchronous=bool(ends),
        spans_compute_us=max(0, ended - posted) / per_us,
        transfer_us=transfer_s(target, seen.kind, seen.link, size, group.size) * 1e6,
        computation=context.computation,
        posted=tuple(post.instruction.name for post in posts),
        ended=tuple(end.instruction.name for end in ends),
        starts_us=posted / per_us,
        ends_us=ended / per_us,
    )


def _bytes(module: Module, computation: str, instruction: Instruction) -> float:
    """The larger of operand and result; of a start or a transfer, without what goes with it."""
    if instruction.opcode in ("send", "recv"):
        return shape_bytes(instruction.shape.split("u32[]")[0])
    given = 0.0
    for name in instruction.operands:
        operand = module.find(computation, name)
        given += shape_bytes(operand.shape) if operand else 0.0
    whole = shape_bytes(instruction.shape)
    if instruction.opcode.endswith("-start"):
        # Its shape lists what it reads beside what it makes, and counters for itself.
        made = shape_bytes(instruction.shape.replace("u32[]", ""))
        return max(given, made - given)
    return max(given, whole)


def _inside(module: Module, instruction: Instruction) -> tuple[str, Instruction] | None:
    """The collective in what an `async-start` calls, however deep, and its computation."""
    calls = (instruction.callees(name) for name in ("calls", "to_apply", "called_computations"))
    for name in (name for names in calls for name in names):
        for inner in module.computations[name]:
            if inner.opcode in KINDS:
                return name, inner
            if found := _inside(module, inner):
                return found
    return None


def _rendezvous(instruction: Instruction) -> str:
    return instruction.attribute("_xla_host_transfer_rendezvous") or ""


def _between(instruction: Instruction) -> str:
    name = instruction.attribute("_xla_megascale_transfer_type") or ""
    return _BETWEEN.get(name, name.lower().replace("_", "-") or "host-transfer")
