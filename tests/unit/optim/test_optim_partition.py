import pytest

from lazytrain.config import OptimizerSettings
from lazytrain.errors import InvalidInput
from lazytrain.optim.partition import eight_bit_share, eight_bit_slices, fraction_of
from lazytrain.optim.state import TensorSlice


def parts(layers=10):
    def layer():
        return [
            TensorSlice("attention", 0, 40_000, 0.0),
            TensorSlice("mlp", 40_064, 160_000, 0.0),
            TensorSlice("norm", 200_128, 128, 0.0),
        ]

    named = {f"layer.{i}": layer() for i in range(layers)}
    return {"embedding": [TensorSlice("embedding", 0, 900_000, 0.0)], **named}


@pytest.mark.parametrize("fraction", [0.02, 0.1, 0.5, 0.9])
def test_the_share_comes_near_the_fraction_from_below(fraction):
    chosen = eight_bit_slices(parts(), fraction)
    share = eight_bit_share(parts(), chosen)
    assert fraction - 0.02 < share <= fraction


def test_all_or_nothing():
    assert eight_bit_share(parts(), eight_bit_slices(parts(), 0)) == 0
    assert eight_bit_share(parts(), eight_bit_slices(parts(), 1)) == 1


def test_the_choice_does_not_depend_on_the_order_of_parts():
    forward = eight_bit_slices(parts(), 0.3)
    backward = eight_bit_slices(dict(reversed(parts().items())), 0.3)
    assert forward == backward == eight_bit_slices(parts(), 0.3)


def test_tensors_below_a_block_keep_fp32_state():
    chosen = eight_bit_slices(parts(), 0.9)
    assert not any(flags[2] for name, flags in chosen.items() if name != "embedding")


def test_a_model_with_only_large_tensors_still_gets_a_share():
    chosen = eight_bit_slices(parts(), 1e-6)
    assert sum(flag for flags in chosen.values() for flag in flags) == 1


def test_a_fraction_outside_the_unit_interval_is_refused():
    with pytest.raises(InvalidInput, match="eight_bit_fraction"):
        eight_bit_slices(parts(), 1.5)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("hybrid_adamw_8bit", 0.02),
        ("cpu_adamw_8bit", 1.0),
        ("adamw", 0.0),
        ("deepspeed_adam", 0.0),
    ],
)
def test_each_optimizer_type_has_its_fraction(kind, expected):
    assert fraction_of(OptimizerSettings(type=kind)) == expected
