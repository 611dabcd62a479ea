"""`compile_for`: compile a function for TPU slices that are not here, and read what came out."""

import inspect
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.errors import JaxRuntimeError
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from ringline.aot._collectives import Collective, find_collectives
from ringline.aot._hlo import Module, parse
from ringline.aot._memory import DoesNotFitError, Memory, read_buffers, sum_of
from ringline.aot._quiet import quiet
from ringline.aot._target import Target, target
from ringline.aot._walk import Walk

PyTree = Any
Say = Callable[[str], None]
_SHOWN = 10  # largest buffers


@dataclass(frozen=True)
class Compiled:
    """A program compiled for a target, and what it does there.

    Times are the compiler's estimates of cycles and the links' rates; nothing has run.

    Attributes:
        target: the slices.
        mesh: the mesh of its devices; None where the arguments lie on none.
        memory: of one device, the compiler's estimate.
        flops: of the matrix products of one device in a step, as if no branch were skipped.
        compute_us: computation of one device in a step, the same way.
        compile_s: how long tracing and compiling took.
        collectives: every collective, in scheduled order.
        text: the scheduled program.
    """

    target: Target
    mesh: Mesh | None
    memory: Memory
    flops: float
    compute_us: float
    compile_s: float
    collectives: tuple[Collective, ...]
    text: str = field(repr=False)
    module: Module = field(repr=False)

    @property
    def walk(self) -> Walk:
        """The program's loops and costs."""
        return Walk(self.module, self.target)

    def in_loops(self, link: str | None = None) -> tuple[Collective, ...]:
        """The collectives inside loops, of one link or of all."""
        return tuple(c for c in self.collectives if c.in_loop and link in (None, c.link))


def compile_for(
    target_or_name: Target | str,
    fn: Callable[..., Any],
    *args: PyTree,
    mesh: Mesh | Mapping[str, int] | Callable[[tuple[Any, ...]], Mesh] | None = None,
    say: Say | None = None,
    **kwargs: PyTree,
) -> Compiled:
    """Compile `fn(*args)` with the TPU compiler for slices that need not exist, and read it.

    Arguments are arrays or `jax.ShapeDtypeStruct`; only shapes, types and shardings matter. A
    sharding on another mesh, such as one of emulated devices, is taken over by its axes' names.
    Where `fn` has a parameter called `mesh`, it gets the target's mesh.

    Args:
        target_or_name: such as `"4x v4-16"`.
        fn: any function that JAX can trace, jitted (with donation and so on) or not.
        *args: its arguments.
        mesh: the target's mesh: sizes of axes for `target.mesh`, such as
            `{"stage": 4, "fsdp": 8}`; a function of the target's devices; or a mesh of them.
            None where arguments lie on one already.
        say: called with what is being done.
        **kwargs: further arguments by name.

    Returns:
        Memory, FLOPs, and every collective with what hides it.

    Raises:
        ValueError: an unknown target, a mesh that does not fit it, arguments without a place.
        DoesNotFitError: a program that needs more memory than a device has.
        ModuleNotFoundError: without libtpu.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from ringline import aot
        >>> w = jax.ShapeDtypeStruct((256, 256), jnp.bfloat16)
        >>> done = aot.compile_for("v5e-4", lambda w: w @ w, w, mesh={"fsdp": 4})  # doctest: +SKIP
        >>> done.memory.fits  # doctest: +SKIP
        True
    """
    say = say or (lambda text: None)
    wanted = target(target_or_name) if isinstance(target_or_name, str) else target_or_name
    devices = wanted.devices()
    on = _mesh(wanted, devices, mesh)
    if on is None:
        on = _mesh_of((args, kwargs), set(devices))
    args, kwargs = jax.tree.map(partial(_placed, wanted, on), (args, kwargs))
    if "mesh" in _parameters(fn) and "mesh" not in kwargs:
        fn = partial(fn, mesh=on)
    started = time.monotonic()
    say("tracing")
    with quiet():
        jitted: Any = fn if hasattr(fn, "lower") else jax.jit(fn)
        lowered = jitted.lower(*args, **kwargs)
    say(f"compiling for {wanted.name}")
    with tempfile.TemporaryDirectory() as folder:
        text, memory = _compile(wanted, lowered, Path(folder))
    say("reading the program")
    return _read(wanted, on, text, memory, time.monotonic() - started)


def read_compiled(
    target_or_name: Target | str, compiled: Any, *, mesh: Mesh | None = None, compile_s: float = 0.0
) -> Compiled:
    """Read a program that was compiled for a target's devices some other way.

    Args:
        target_or_name: whose devices.
        compiled: what `jax.jit(...).lower(...).compile()` gave.
        mesh: over which it runs, to name axes.
        compile_s: how long compiling took.
    """
    wanted = target(target_or_name) if isinstance(target_or_name, str) else target_or_name
    memory = _analysed(wanted, compiled)
    return _read(wanted, mesh, compiled.as_text(), memory, compile_s)


def _read(
    wanted: Target, mesh: Mesh | None, text: str, memory: Memory, compile_s: float
) -> Compiled:
    module = parse(text)
    walk = Walk(module, wanted)
    return Compiled(
        target=wanted,
        mesh=mesh,
        memory=memory,
        flops=walk.flops(module.entry),
        compute_us=walk.cycles(module.entry) / wanted.clock_hz * 1e6,
        compile_s=compile_s,
        collectives=find_collectives(module, walk, wanted, mesh),
        text=text,
        module=module,
    )


def _compile(wanted: Target, lowered: Any, folder: Path) -> tuple[str, Memory]:
    """The scheduled program and its memory. The compiler writes its buffers to `folder`."""
    options = {"xla_dump_to": str(folder), "xla_dump_hlo_as_text": True}
    with quiet(may_crash=True):
        try:
            compiled = lowered.compile(options)
        except JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            compiled = None
        text = _text(compiled, folder)
    buffers = read_buffers(_assignment(folder), parse(text))
    largest = tuple(buffers[:_SHOWN])
    if compiled is None:
        given, temporary, made = (sum_of(buffers, u) for u in ("argument", "temporary", "output"))
        memory = Memory(given, temporary, made, wanted.limit_bytes, largest)
    else:
        memory = replace(_analysed(wanted, compiled), largest=largest)
    if not memory.fits or compiled is None:
        raise DoesNotFitError(wanted.name, memory)
    return text, memory


def _assignment(folder: Path) -> Path:
    """Where the compiler wrote the buffers of the program, the largest of what it compiled."""
    return max(folder.glob("*buffer-assignment.txt"), key=lambda path: path.stat().st_size)


def _text(compiled: Any, folder: Path) -> str:
    """The scheduled program; as the compiler wrote it, without its cycles, where JAX cannot.

    A chip's compiler may write instructions that the installed JAX cannot read.
    """
    try:
        if compiled is not None:
            return compiled.as_text()
    except JaxRuntimeError:
        pass
    name = _assignment(folder).name.replace("-buffer-assignment.txt", ".txt")
    return (folder / name).read_text(encoding="utf-8")


def _analysed(wanted: Target, compiled: Any) -> Memory:
    """Memory of a program that fits, by its sums."""
    found = compiled.memory_analysis()
    return Memory(
        arguments_bytes=found.argument_size_in_bytes,
        temporaries_bytes=found.temp_size_in_bytes,
        outputs_bytes=found.output_size_in_bytes - found.alias_size_in_bytes,
        limit_bytes=wanted.limit_bytes,
    )


def _mesh(wanted: Target, devices: tuple[Any, ...], mesh: Any) -> Mesh | None:
    if mesh is None:
        return None
    if isinstance(mesh, Mapping):
        return wanted.mesh(**mesh)
    made = mesh if isinstance(mesh, Mesh) else mesh(devices)
    if not isinstance(made, Mesh):
        raise ValueError(f"the mesh builder must return a jax Mesh, got {type(made).__name__}")
    if not set(made.devices.flat) <= set(devices):
        raise ValueError(
            f"the mesh holds devices that are not those of {wanted.name}; build it from "
            f"ringline.aot.target({wanted.name!r}).devices(), or pass mesh={{'axis': size}}"
        )
    return made


def _mesh_of(tree: PyTree, devices: set[Any]) -> Mesh | None:
    """The mesh on the target that some argument lies on."""
    for leaf in jax.tree.leaves(tree):
        sharding = getattr(leaf, "sharding", None)
        on = sharding.mesh if isinstance(sharding, NamedSharding) else None
        if isinstance(on, Mesh) and set(on.devices.flat) <= devices:
            return on
    return None


def _placed(wanted: Target, mesh: Mesh | None, leaf: Any) -> Any:
    """The shape of an argument with its place on the target."""
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        if not isinstance(leaf, bool | int | float | complex):
            return leaf
        leaf = np.asarray(leaf)
    sharding = getattr(leaf, "sharding", None)
    if mesh is None:
        if wanted.device_count > 1:
            raise ValueError(
                f"no argument says where it lies on {wanted.name}; pass mesh=, such as "
                f"mesh={{'fsdp': {wanted.device_count}}}"
            )
        return jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=SingleDeviceSharding(wanted.devices()[0])
        )
    spec = sharding.spec if isinstance(sharding, NamedSharding) else PartitionSpec()
    try:
        place = NamedSharding(mesh, spec)
    except ValueError as error:
        raise ValueError(
            f"an argument of shape {list(leaf.shape)} lies along {spec}, but the target's mesh has "
            f"the axes {', '.join(mesh.axis_names)}; give them the same names"
        ) from error
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place)


def _parameters(fn: Callable[..., Any]) -> Mapping[str, Any]:
    try:
        return inspect.signature(fn).parameters
    except (TypeError, ValueError):
        return {}
