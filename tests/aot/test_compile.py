"""`compile_for`: any function on any target; what does not fit, trace or lie anywhere."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ringline.aot import DoesNotFitError, compile_for, read_compiled, report_json, target

pytestmark = pytest.mark.usefixtures("libtpu")
W = jax.ShapeDtypeStruct((1024, 512), jnp.bfloat16)


def on(mesh, *spec):
    return jax.ShapeDtypeStruct(
        W.shape, W.dtype, sharding=NamedSharding(mesh, PartitionSpec(*spec))
    )


def product(w):
    return jnp.sum(w @ w.T)


def test_arguments_that_lie_on_the_target():
    mesh = target("v5e-4").mesh(fsdp=4)
    done = compile_for("v5e-4", product, on(mesh, "fsdp"))
    assert done.memory.arguments_bytes == 1024 * 512 * 2 / 4
    assert done.mesh == mesh
    (gather, total) = done.collectives
    assert (gather.kind, gather.link, gather.axis, gather.bytes) == (
        *("all-gather", "ICI", "fsdp"),
        1024 * 512 * 2,
    )
    assert total.kind == "all-reduce"


def test_arguments_on_emulated_devices_are_taken_over_by_axis():
    here = Mesh(np.array(jax.devices()[:4]), ("fsdp",))
    done = compile_for("v5e-4", product, on(here, "fsdp"), mesh={"fsdp": 4})
    assert done.memory.arguments_bytes == 1024 * 512 * 2 / 4


def test_real_arrays_and_a_jitted_function_with_donation():
    step = jax.jit(lambda w: w * 2, donate_argnums=0)
    done = compile_for("v5e-4", step, jnp.ones((256, 256)), mesh=lambda d: Mesh(np.array(d), "a"))
    assert done.memory.outputs_bytes == 0


def test_a_function_that_takes_the_mesh():
    def scaled(w, *, mesh):
        return w * mesh.shape["stage"]

    done = compile_for("2x v5e-4", scaled, W, mesh={"stage": 2, "fsdp": 4})
    assert done.mesh is not None
    assert done.mesh.shape["stage"] == 2


def test_a_program_compiled_otherwise_reads_the_same():
    mesh = target("v5e-4").mesh(fsdp=4)
    compiled = jax.jit(product).lower(on(mesh, "fsdp")).compile()
    there = report_json(read_compiled("v5e-4", compiled, mesh=mesh))
    here = report_json(compile_for("v5e-4", product, on(mesh, "fsdp")))
    for name in ("collectives", "flops", "compute_us"):
        assert there[name] == here[name]


def test_what_does_not_fit_says_by_how_much_and_the_largest_buffers():
    big = jax.ShapeDtypeStruct((60000, 60000), jnp.float32)
    with pytest.raises(DoesNotFitError) as error:
        compile_for("v4-8", lambda w: (jnp.sin(w) @ w, w * 2), big, mesh={"a": 4})
    text = str(error.value)
    assert "more than the 30.75 GiB" in text
    assert text.count("13.42 GiB") == 3
    assert "\n" not in text
    assert not error.value.memory.fits
    assert error.value.memory.total_bytes > 3 * 4 * 60000**2


def test_an_error_of_the_users_function_is_its_own():
    with pytest.raises(TypeError, match="dot_general"):
        compile_for("v5e-4", lambda w: w @ w, W, mesh={"a": 4})


@pytest.mark.parametrize(
    ("mesh", "says"),
    [
        (None, "pass mesh="),
        ({"a": 3}, "change an axis"),
        (lambda devices: devices, "must return a jax Mesh"),
        (Mesh(np.array(jax.devices()[:4]), ("a",)), "not those of v5e-4"),
    ],
)
def test_meshes_that_do_not_serve(mesh, says):
    with pytest.raises(ValueError, match=r".") as error:
        compile_for("v5e-4", product, W, mesh=mesh)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_axes_that_the_target_does_not_have():
    here = Mesh(np.array(jax.devices()[:4]), ("fsdp",))
    with pytest.raises(ValueError, match="give them the same names"):
        compile_for("v5e-4", product, on(here, "fsdp"), mesh={"data": 4})


def test_nothing_reaches_the_terminal(capfd):
    compile_for("v5e-4", product, W, mesh={"a": 4})
    assert capfd.readouterr() == ("", "")
