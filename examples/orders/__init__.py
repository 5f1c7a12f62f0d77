"""Order fulfilment, the example that `make demo` runs."""
