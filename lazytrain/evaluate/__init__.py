"""Generation and exact match."""
