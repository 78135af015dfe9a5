"""Places where a boundary or an optimizer state can wait."""
