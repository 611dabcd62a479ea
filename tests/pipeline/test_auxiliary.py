"""Auxiliary values of layers and metrics of the loss are those of the plain model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pipeline_helpers import WIDTH, difference, layer, make_batch, make_mesh, make_params

import ringline
from ringline import schedules

MICROBATCHES = 3


def routed(params, x, keys=None):
    """A layer with a balance loss that is not linear in the rows, and a load to report."""
    probabilities = jax.nn.softmax(x @ params["up"][:, :4], axis=-1)
    load = jnp.mean(probabilities, axis=(0, 1))
    return layer(params, x), {"balance": 4 * jnp.sum(load**2), "load": load}


def plain_microbatch(params, x):
    sums = {"balance": jnp.zeros(()), "load": jnp.zeros(4)}
    for index in range(params["up"].shape[0]):
        x, values = routed(jax.tree.map(lambda leaf, i=index: leaf[i], params), x)
        sums = jax.tree.map(jnp.add, sums, values)
    return x, sums


def weighted(loss_params, y, targets, auxiliary):
    """Few tokens count in some microbatches; the balance loss counts the same in all."""
    weight = (targets[..., :1] > 0).astype(y.dtype)
    error = jnp.sum(weight * (y @ loss_params - targets) ** 2)
    metrics = {"near": jnp.sum(weight * (jnp.abs(y - targets) < 1)), "load": auxiliary["load"]}
    return (error, jnp.sum(weight), 0.1 * auxiliary["balance"]), metrics


def mean(loss_params, y, targets, auxiliary):
    loss = jnp.mean((y @ loss_params - targets) ** 2) + 0.1 * auxiliary["balance"]
    return loss, {"load": auxiliary["load"]}


def reference(head, fsdp):
    """The plain model, microbatch by microbatch and, where rows are shared out, part by part."""

    def loss(params, loss_params, x, targets):
        terms = []
        for i in range(MICROBATCHES):
            for rows in np.split(np.arange(i, x.shape[0], MICROBATCHES), fsdp):
                y, auxiliary = plain_microbatch(params, x[rows])
                value, metrics = head(loss_params, y, targets[rows], auxiliary)
                terms.append((value if isinstance(value, tuple) else (value, 1.0, 0.0), metrics))
        total = sum(weight for (_, weight, _), _ in terms)
        value = sum(part for (part, _, _), _ in terms) / total
        value += sum(extra for (_, _, extra), _ in terms) / len(terms)
        sums = jax.tree.map(lambda *leaves: sum(leaves) / total, *(m for _, m in terms))
        return value, sums

    return loss


@pytest.mark.parametrize("head", [weighted, mean])
@pytest.mark.parametrize(
    ("schedule", "options"),
    [
        (schedules.eager_one_f_one_b(2, MICROBATCHES), {"remat": False}),
        (schedules.zero_bubble_v(2, MICROBATCHES), {"gather": "use"}),
        (schedules.interleaved_one_f_one_b(2, MICROBATCHES, 2), {"rng": jax.random.key(0)}),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_loss_metrics_and_gradients(head, schedule, options):
    fsdp, rows = 2, 2 * 2 * MICROBATCHES
    params, loss_params = make_params(schedule.chunks), 1.1 * jnp.eye(WIDTH)
    x = make_batch(rows)
    targets = jnp.where(jnp.arange(rows)[:, None, None] % 5 == 0, -1.0, x[::-1])

    def run(params, loss_params, x):
        return ringline.pipeline_loss(
            routed,
            head,
            params,
            loss_params,
            x,
            targets,
            schedule=schedule,
            mesh=make_mesh(2, fsdp),
            layer_aux=True,
            has_aux=True,
            **options,
        )

    want = jax.value_and_grad(reference(head, fsdp), argnums=(0, 1, 2), has_aux=True)(
        params, loss_params, x, targets
    )
    got = jax.jit(jax.value_and_grad(run, argnums=(0, 1, 2), has_aux=True))(params, loss_params, x)
    assert difference(got, want) <= 1e-5
    assert difference(jax.jit(run)(params, loss_params, x), want[0]) <= 1e-5


def test_forward_pipeline_gives_sums_over_layers_and_means_over_microbatches():
    schedule = schedules.circular(2, MICROBATCHES, 2)
    params, x = make_params(4), make_batch(2 * MICROBATCHES)
    y, auxiliary = ringline.pipeline(
        routed, params, x, schedule=schedule, mesh=make_mesh(2), layer_aux=True
    )
    parts = [plain_microbatch(params, x[i::MICROBATCHES]) for i in range(MICROBATCHES)]
    want = jax.tree.map(lambda *leaves: sum(leaves) / MICROBATCHES, *(sums for _, sums in parts))
    assert difference(auxiliary, want) <= 1e-5
    assert difference(y[1::MICROBATCHES], parts[1][0]) <= 1e-5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layer": layer, "layer_aux": True}, ["must return (x, auxiliary)", "layer_aux"]),
        ({"layer": routed}, ["must return the structure", "layer_aux=True"]),
        ({"loss": lambda p, y, t: jnp.mean(y), "has_aux": True}, ["(loss, metrics)", "has_aux"]),
        ({"loss": lambda p, y, t: (jnp.mean(y), {})}, ["a scalar", "has_aux=True"]),
        (
            {"loss": lambda p, y, t: (jnp.sum(y), jnp.sum(y > 0), jnp.sum(y))},
            ["follows from the targets alone", "(sum, weight)"],
        ),
    ],
)
def test_bad_input_is_one_clear_line(change, words):
    options = {"layer": layer, "loss": lambda p, y, t: jnp.mean(y)} | change
    run, loss = options.pop("layer"), options.pop("loss")
    x = make_batch(4)
    with pytest.raises(ValueError, match=r".") as caught:
        ringline.pipeline_loss(
            run,
            loss,
            make_params(2),
            (),
            x,
            x,
            schedule=schedules.linear(2, 2),
            mesh=make_mesh(2),
            **options,
        )
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)
