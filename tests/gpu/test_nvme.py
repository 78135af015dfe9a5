"""On a GPU: boundaries on NVMe give autograd's gradients, whatever the disk does."""

import pytest
from streaming import (
    engine_for,
    gradients_of,
    plan_for,
    random_batch,
    reference_gradients,
    relative_error,
    small_config,
    weights_of,
)

from lazytrain.tiers.nvme import NvmeTier


@pytest.mark.parametrize("homes", ["NNNNG", "GNCRG", "NRRNG"])
@pytest.mark.parametrize(("body", "level"), [("eager", "all"), ("compile", "inputs")])
def test_fp32_gradients_match_autograd(tmp_path, homes, body, level):
    config = small_config("7B-mini", layers=4)
    plan = plan_for(config, homes, level=level, body=body)
    with NvmeTier(tmp_path, 64 * 2**20) as tier:
        engine = engine_for(config, plan, device="cuda", tier=tier)
        weights = weights_of(engine)
        for seed in range(3):
            batch = random_batch(config.vocab_size, seed=seed)
            if seed == 0:
                _, gradients = reference_gradients(
                    config, weights, batch, device="cuda"
                )
            engine.train_step(batch, 1e-3).result()
            if seed == 0:
                for name, value in gradients_of(engine).items():
                    assert relative_error(value, gradients[name]) < 1e-5, name
        engine.close()
