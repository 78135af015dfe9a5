"""Train large language models on one GPU along a solved streaming plan."""

__version__ = "0.1.0"
