"""What flow authors write with."""
