"""A process of the fleet from the first setting to the exit code."""
