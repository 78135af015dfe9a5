"""Rival systems, each at its best."""
