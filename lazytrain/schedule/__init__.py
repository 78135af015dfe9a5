"""The planner: instances, plans, the mixed-integer program and its checks."""
