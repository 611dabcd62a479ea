"""`Recipe`: an MLP pipeline on slices, as data; `Way`: one of the orders it can be run in."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from ringline.aot import Target, target
from ringline.schedule import PipelineSchedule, named_schedule
from ringline.topology._tables import Table, nearest, read_table

_FOLDER = Path(__file__).parent
Gather = Literal["step", "repeat", "use"]
GATHERS: tuple[Gather, ...] = get_args(Gather)
LATE = "circular-late-send"
WAYS = ("linear", "circular", LATE, "1f1b", "eager-1f1b", "interleaved")
_SINGLE_SLICE_STAGES = 4


@dataclass(frozen=True, slots=True)
class Recipe:
    """A stack of SwiGLU layers, d wide with an MLP of f, as a pipeline on slices.

    Attributes:
        title: one line.
        target: the slices.
        stages: p.
        layers_per_chunk: layers between two transfers of a schedule with `repeats` chunks.
        repeats: v, chunks of a stage; schedules of one chunk hold all its layers in it.
        microbatches: m.
        d_model: d.
        mlp: f.
        length: tokens of a sequence.
        sequences_per_device: sequences of a microbatch on each device of a stage.
        schedule: the way that is run when none is asked for.
        gather: when partitioned weights are made whole.
        assumes: what the numbers rest on.
    """

    title: str
    target: Target
    stages: int
    layers_per_chunk: int
    repeats: int
    microbatches: int
    d_model: int
    mlp: int
    length: int
    sequences_per_device: int
    schedule: str
    gather: Gather = "step"
    assumes: tuple[str, ...] = ()

    @property
    def fsdp(self) -> int:
        """Devices of a stage."""
        return self.target.device_count // self.stages

    @property
    def layers(self) -> int:
        """Layers of the model."""
        return self.stages * self.repeats * self.layers_per_chunk

    @property
    def tokens(self) -> int:
        """Tokens of a microbatch on one device."""
        return self.sequences_per_device * self.length

    @property
    def batch(self) -> int:
        """Sequences of a step."""
        return self.microbatches * self.sequences_per_device * self.fsdp


@dataclass(frozen=True, slots=True)
class Way:
    """One order of a recipe.

    Attributes:
        name: of the way.
        schedule: the order.
        late_send: results travel one tick later than they are made, beside the next chunk.
        scheduled: forward and backward are one schedule; else autodiff makes the backward.
    """

    name: str
    schedule: PipelineSchedule
    late_send: bool = False
    scheduled: bool = True

    def depth(self, recipe: Recipe) -> int:
        """Layers of one chunk."""
        return recipe.layers // self.schedule.chunks


def way_of(recipe: Recipe, name: str | None = None) -> Way:
    """The way called `name`: one of `WAYS`, or any schedule by its name.

    Raises:
        ValueError: for an unknown name, or a schedule that the recipe's sizes do not go with.
    """
    name = name or recipe.schedule
    wanted = "circular" if name == LATE else name
    sizes = {"stages": recipe.stages, "microbatches": recipe.microbatches}
    schedule = named_schedule(wanted, **sizes)
    if schedule.repeats > 1 and recipe.repeats != schedule.repeats:
        schedule = named_schedule(wanted, **sizes, repeats=recipe.repeats)
    if schedule.stages != recipe.stages:
        raise ValueError(f"schedule {name!r} has {schedule.stages} stages, not {recipe.stages}")
    if recipe.layers % schedule.chunks:
        raise ValueError(
            f"schedule {name!r} has {schedule.chunks} chunks for {recipe.layers} layers; change "
            "layers_per_chunk or repeats"
        )
    schedule.validate()
    autodiff = schedule.name in ("linear", "circular")
    return Way(name, schedule, late_send=name == LATE, scheduled=not autodiff)


def recipe_names() -> list[str]:
    """The recipes that come with the package."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def read_recipe(name: str | Path) -> Recipe:
    """The recipe called `name`, or of the TOML file at that path.

    Raises:
        ValueError: for an unknown name or a fault in the file, with file, line and key.
    """
    path = Path(name)
    if path.suffix != ".toml":
        path = _FOLDER / f"{name}.toml"
        if not path.exists():
            raise ValueError(f"unknown recipe {str(name)!r}{nearest(str(name), recipe_names())}")
    return _recipe(read_table(path).table("recipe"))


def recipe_for(name: str) -> Recipe:
    """A recipe for the target called `name`: its own where it has one, else the 28k MLP on it."""
    wanted = target(name)
    for own in map(read_recipe, recipe_names()):
        if (own.target.topology, own.target.cluster.slices) == (
            wanted.topology,
            wanted.cluster.slices,
        ):
            return replace(own, target=wanted)
    return retarget(read_recipe("4x-v4-16"), wanted)


def retarget(recipe: Recipe, wanted: Target) -> Recipe:
    """The recipe on other slices, a stage for each; four stages where there is one slice.

    Raises:
        ValueError: when the devices do not make up the stages.
    """
    slices = wanted.cluster.slices
    stages = slices if slices > 1 else min(_SINGLE_SLICE_STAGES, wanted.device_count)
    m = -(-max(recipe.microbatches, stages) // stages) * stages
    return replace(recipe, target=wanted, stages=stages, microbatches=m, title="28k MLP")


def _recipe(table: Table) -> Recipe:
    counts = tuple(_counts(table))
    texts = ("title", "target", "schedule", "gather")
    table.require_known((*texts, "assumes", *(name for name, _ in counts)))
    found = target(table.text("target"))
    gather = gather_of(table.text("gather", "step"))
    sizes = dict(counts)
    if found.device_count % sizes["stages"]:
        raise table.error(
            "stages",
            f"{sizes['stages']} stages do not divide the {found.device_count} devices of "
            f"{found.name}; change stages",
        )
    return Recipe(
        title=table.text("title", table.path.stem),
        target=found,
        schedule=table.text("schedule", "interleaved"),
        gather=gather,
        assumes=table.texts("assumes"),
        **sizes,
    )


def gather_of(name: str) -> Gather:
    """`name` as one of `GATHERS`.

    Raises:
        ValueError: when it is none.
    """
    for gather in GATHERS:
        if gather == name:
            return gather
    raise ValueError(f"gather must be one of {', '.join(GATHERS)}, got {name!r}")


def _counts(table: Table) -> Iterator[tuple[str, int]]:
    for name in ("stages", "microbatches", "d_model", "mlp", "length"):
        yield name, table.whole(name)
    for name in ("layers_per_chunk", "repeats", "sequences_per_device"):
        yield name, table.whole(name, 1)
