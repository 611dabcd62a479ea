"""Ten models from 1.7B to 1T on up to 3,072 A100: a blind test, nothing is fitted to it."""

from ringline.plan._layout import Layout
from ringline.plan._model import Model
from ringline.plan._step import Evaluator, Plan, Work
from ringline.plan.validate._figure import Figure, Options, Report, check
from ringline.plan.validate._korthikanti import fitted_to_22b
from ringline.topology import cluster

# Billions of parameters, heads, hidden, layers, tensor, stages, GPUs, batch, TFLOP/s a GPU.
ROWS = (
    (1.7, 24, 2304, 24, 1, 1, 32, 512, 137),
    (3.6, 32, 3072, 30, 2, 1, 64, 512, 138),
    (7.5, 32, 4096, 36, 4, 1, 128, 512, 142),
    (18.4, 48, 6144, 40, 8, 1, 256, 1024, 135),
    (39.1, 64, 8192, 48, 8, 2, 512, 1536, 138),
    (76.1, 80, 10240, 60, 8, 4, 1024, 1792, 140),
    (145.6, 96, 12288, 80, 8, 8, 1536, 2304, 148),
    (310.1, 128, 16384, 96, 8, 16, 1920, 2160, 155),
    (529.6, 128, 20480, 105, 8, 35, 2520, 2520, 163),
    (1008.0, 160, 25600, 128, 8, 64, 3072, 3072, 163),
)
_LENGTH, _VOCAB = 2048, 51200


@check("narayanan")
def narayanan(options: Options) -> Report:
    """Achieved FLOP/s a GPU, counted with full recomputation as that paper counts them."""
    how = fitted_to_22b()
    figures = []
    for billions, heads, hidden, layers, tensor, stages, gpus, batch, published in ROWS:
        model = gpt(billions, heads, hidden, layers)
        work = Work(model, cluster(f"{gpus}x a100"), batch, _LENGTH, how, False)
        plan = _best(work, tensor, stages)
        forward = layers * model.layer_flops(_LENGTH) * 4 + 3 * model.head_flops()
        rate = forward * batch * _LENGTH / gpus / plan.predicted_s / 1e12
        figures.append(Figure(f"{model.name}, {gpus} GPUs", rate, published, "TFLOP/s"))
    mean = sum(abs(figure.error) for figure in figures) / len(figures)
    figures.append(Figure("mean error", mean, 0.0, "", 0.08, relative=False))
    return Report(
        "narayanan",
        "Achieved TFLOP/s of 1.7B to 1T models on A100, a blind test",
        "Narayanan et al., arXiv 2104.04473, table 1",
        tuple(figures),
        (
            f"The efficiencies are those of the check korthikanti, matmul_share = "
            f"{how.matmul_share:.3f}: nothing is fitted to these rows.",
            "The paper gives neither microbatch sizes nor repeats: the fastest size of 1 to 16 "
            "that fits is taken, and 2 or 3 repeats where they divide the layers.",
            "From 39B on, where the pipeline starts, the prediction is 6 to 10% fast. Waiting for "
            "every transfer explains half a percent of it; the rest is not explained. The same "
            "layouts a year later, in the check korthikanti, are within 3%.",
        ),
    )


def gpt(billions: float, heads: int, hidden: int, layers: int) -> Model:
    """A GPT of that paper."""
    return Model(f"{billions:g}B", layers, hidden, heads, 4 * hidden, _VOCAB, tied=True)


def _best(work: Work, tensor: int, stages: int) -> Plan:
    """The fastest microbatch size that fits."""
    data = work.cluster.chips // tensor // stages
    whole = [v for v in (2, 3) if stages > 1 and work.model.layers % (stages * v) == 0]
    repeats = whole[0] if whole else 1
    schedule = "interleaved_one_f_one_b" if repeats > 1 else "one_f_one_b"
    plans = []
    for size in (1, 2, 4, 8, 16):
        layout = Layout(
            stages,
            repeats,
            max(1, work.batch // (data * size)),
            schedule if stages > 1 else "none",
            "full",
            tensor=tensor,
            data=data,
            gather="step",
        )
        if layout.refuses(work.model, work.cluster, work.batch) is None:
            plans.append(Evaluator(work).best(layout))
    return min(plans, key=lambda plan: (not plan.memory.fits, plan.predicted_s))
