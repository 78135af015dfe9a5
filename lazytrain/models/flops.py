"""Counting work the way the paper does: 6 N per token (MegaTrain's convention)."""

from __future__ import annotations


def train_flops(num_parameters: int, tokens: int) -> float:
    """Return the model FLOPs of one step: 6 x parameters x tokens.

    N is all parameters, the embedding included; recomputation is not counted.
    """
    return 6.0 * num_parameters * tokens


def tflops(num_parameters: int, tokens_per_s: float) -> float:
    """Return sustained TFLOPS at a token rate."""
    return train_flops(num_parameters, 1) * tokens_per_s / 1e12
