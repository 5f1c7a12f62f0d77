"""Other durable-execution engines, wired to the same workloads."""
