"""Benchmarks: loom-mq's fleet, its peers and the raw pipeline, on one machine in one run."""
