"""Parts of a made-up model in bf16, for sums that are done by hand."""

from typing import Literal

from lazytrain.schedule.instance import PartSpec


def part(
    name: str, kind: Literal["embedding", "layer", "head"], parameters: int
) -> PartSpec:
    """Return a part whose weights and gradients take two bytes a parameter."""
    return PartSpec(
        name=name,
        kind=kind,
        num_parameters=parameters,
        weight_bytes=2 * parameters,
        gradient_bytes=2 * parameters,
    )
