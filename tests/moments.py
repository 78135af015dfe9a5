"""How far the 8-bit moments of two implementations of one update may lie apart."""

import torch

from lazytrain.optim.state import PartState


def check_moments(state: PartState, expected: PartState, scale_rtol: float) -> None:
    """Refuse moments that differ by more than codes at their cells' borders.

    Args:
        state: After one update, or after several of which none fell at a border.
        expected: The same by the reference.
        scale_rtol: Relative difference that the blocks' scales may have.
    """
    for name in ("exp_avg_code", "exp_avg_sq_code"):
        own, true = (getattr(s.moments, name).int() for s in (state, expected))
        assert (own - true).abs().max() <= 1
        assert (own != true).float().mean() < 1e-3
    for name in ("exp_avg_scale", "exp_avg_sq_scale"):
        own, true = (getattr(s.moments, name) for s in (state, expected))
        torch.testing.assert_close(own, true, rtol=scale_rtol, atol=0)
