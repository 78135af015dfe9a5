"""The training loop, its measurements and its files."""
