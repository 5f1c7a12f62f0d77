"""Starting executions and waiting for them."""
