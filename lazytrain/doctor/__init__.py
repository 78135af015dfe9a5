"""What this machine has, what it is missing, and what to do about it."""
