"""The commands behind ``lazytrain``: each reads, calls, writes; no logic."""
