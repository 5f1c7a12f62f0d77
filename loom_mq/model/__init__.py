"""What is stored and sent: frozen structs, no behaviour."""
