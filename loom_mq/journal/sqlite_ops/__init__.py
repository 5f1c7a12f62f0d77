"""What the embedded journal does inside its transactions, on its own threads."""
