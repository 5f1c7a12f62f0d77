"""The rules of execution, pure: no input or output, no clock, no chance."""
