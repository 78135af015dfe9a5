"""Two small steps on a GPU, to run under compute-sanitizer.

compute-sanitizer --tool memcheck python tests/gpu/sanitized_step.py
"""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from streaming import engine_for, plan_for, random_batch, small_config


def main() -> None:
    """Run every home, replay and the loss kernel once."""
    config = small_config("3B-mini", layers=4)
    plan = plan_for(config, "GRCRG", batch=2, micro_batch=1)
    engine = engine_for(config, plan, device="cuda", dtype=torch.bfloat16)
    for seed in range(2):
        batch = random_batch(config.vocab_size, rows=2, seed=seed)
        sys.stdout.write(f"{engine.train_step(batch, 1e-3).result().loss:.6f}\n")
    engine.close()


if __name__ == "__main__":
    main()
