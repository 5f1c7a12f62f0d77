"""Tests of loom-mq."""
