"""Rows, splits, prompts and batches."""
