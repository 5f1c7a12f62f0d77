"""What drives executions: admission, claims, leases, timers."""
