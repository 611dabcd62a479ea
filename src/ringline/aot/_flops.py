"""FLOPs of the matrix products in a compiled program, which for TPUs are convolutions."""

import math
import re

from ringline.aot._hlo import Instruction, Module, arrays


def fusion_flops(module: Module, computation: str, instruction: Instruction) -> float:
    """Twice the multiply-adds of one `convolution` or `dot`, 0 for anything else."""
    if instruction.opcode not in ("convolution", "dot"):
        return 0.0
    left, right = (_dims(module, computation, name) for name in instruction.operands[:2])
    if left is None or right is None:
        return 0.0
    _, out = next(arrays(instruction.shape))
    if instruction.opcode == "dot":
        contracted = _numbers(instruction.attribute("lhs_contracting_dims"))
        return 2.0 * math.prod(out) * math.prod(left[d] for d in contracted)
    return 2.0 * _multiply_adds(instruction, left, right, out)


def _multiply_adds(
    convolution: Instruction, left: tuple[int, ...], right: tuple[int, ...], out: tuple[int, ...]
) -> float:
    r"""Batch x output features x input features of a group, times over the spatial dimensions
    the pairs of a kernel's and an output's place that meet an element of the input.

    A batch dimension of a product is a spatial one whose places meet one to one.
    """
    labels = convolution.attribute("dim_labels") or "bf_io->bf"
    left_labels, rest = labels.split("_")
    right_labels, out_labels = rest.split("->")
    total = float(out[out_labels.index("b")] * out[out_labels.index("f")])
    total *= right[right_labels.index("i")]
    window = _window(convolution.attribute("window") or "{}")
    for axis in sorted(label for label in right_labels if label.isdigit()):
        total *= _meetings(
            left[left_labels.index(axis)],
            right[right_labels.index(axis)],
            out[out_labels.index(axis)],
            {name: values[int(axis)] for name, values in window.items()},
        )
    return total


def _meetings(inputs: int, kernel: int, outputs: int, window: dict[str, tuple[int, ...]]) -> int:
    (stride,) = window.get("stride", (1,))
    padding = window.get("pad", (0, 0))[0]
    (spread,) = window.get("lhs_dilate", (1,))
    (reach,) = window.get("rhs_dilate", (1,))
    found = 0
    for place in range(kernel):
        # Positions of the spread-out input that this place of the kernel meets.
        first = place * reach - padding
        found += sum(
            0 <= position < (inputs - 1) * spread + 1 and position % spread == 0
            for position in range(first, first + outputs * stride, stride)
        )
    return found


def _window(text: str) -> dict[str, list[tuple[int, ...]]]:
    """`{size=1x4 pad=0_0x3_3}` as numbers for each spatial dimension."""
    return {
        name: [tuple(int(n) for n in item.split("_")) for item in values.split("x")]
        for name, values in re.findall(r"(\w+)=([\-\dx_]+)", text)
    }


def _dims(module: Module, computation: str, name: str) -> tuple[int, ...] | None:
    found = module.find(computation, name)
    return next((dims for _, dims in arrays(found.shape)), None) if found else None


def _numbers(text: str | None) -> list[int]:
    return [int(n) for n in re.findall(r"\d+", text or "")]
