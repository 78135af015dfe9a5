"""The streaming executor: runs a plan, step by step."""
