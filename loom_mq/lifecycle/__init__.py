"""What is done with executions afterwards: kept, archived, cut, erased, forked, measured (J8)."""
