"""The published all-gather on rings and lines of Ethernet links, packet by packet."""

from ringline.plan.validate._figure import Figure, Options, Report, check
from ringline.schedule import all_gather
from ringline.simulate import collective_s
from ringline.topology import Line, Ring, mover

_KIB, _MIB = 1 << 10, 1 << 20
_SIZES = (16 * _KIB, 64 * _KIB, 128 * _KIB, 512 * _KIB, *(m * _MIB for m in (1, 4, 16, 128, 2048)))
# Microseconds of each size; bf16, packets of 6144 B, one link per direction.
_PUBLISHED_US = {
    Line(2): (8.28, 12.20, 17.50, 48.31, 89.16, 336.1, 1326.6, 10565, 168951),
    Line(4): (11.69, 14.16, 19.30, 44.04, 77.50, 278.65, 1081.98, 8584.7, 137196),
    Line(8): (19.84, 24.98, 29.46, 59.46, 101.28, 331.93, 1268.25, 10008.7, 159897),
    Ring(8): (17.61, 20.36, 24.08, 44.73, 69.56, 199.16, 727.02, 5665.9, 90340),
}
_PACKET_BYTES = 6144
_FITTED = {
    Line(2): (64 * _KIB, 128 * _KIB, 512 * _KIB, _MIB, 2048 * _MIB),
    Line(4): (64 * _KIB, 128 * _KIB, 512 * _KIB, _MIB, 2048 * _MIB),
    Line(8): (512 * _KIB, _MIB),
    Ring(8): (512 * _KIB, _MIB),
}


@check("all-gather")
def all_gather_curve(options: Options) -> Report:
    """Every published size with one set of hardware parameters."""
    hardware = mover("wormhole-ethernet").with_packet(_PACKET_BYTES)
    figures = []
    for topology, row in _PUBLISHED_US.items():
        schedule = all_gather(topology)
        kind = type(topology).__name__.lower()
        for size, published_us in zip(_SIZES, row):
            figures.append(
                Figure(
                    f"{kind} of {topology.devices}, {_text(size)}",
                    collective_s(schedule, size, mover=hardware) * 1e6,
                    published_us,
                    "us",
                    _tolerance(topology, size),
                    fit=size in _FITTED[topology],
                )
            )
    return Report(
        "all-gather",
        "All-gather over one 100 Gbit/s link per direction, simulated packet by packet",
        "the vendor's 2026 report on rings and lines, bf16, packets of 6144 B",
        tuple(figures),
        (
            "Four values of movers.toml are fitted to the rows marked (fit): the gap between "
            "packets, the worker's rate, and the two parts of the start. The other rows are the "
            "test.",
            "The ring's lower rate is a prediction: bubble flow control with the slots that fit "
            "the memory costs it a tenth, with no parameter for it.",
            "Below 512 KiB eight devices start sooner than the one start time says: those rows "
            "are only reported.",
            "Sizes above 16 MiB go on with the slope from 8 to 16 MiB.",
        ),
    )


def _tolerance(topology: Line | Ring, size: int) -> float | None:
    if topology == Line(4) and size >= 64 * _KIB:
        return 0.01 if size >= 4 * _MIB else 0.04
    if topology.devices == 8 and size >= 512 * _KIB:
        return 0.10
    return None


def _text(size: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (_MIB, "MiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size // _KIB} KiB"
