"""How many bytes, of what, where: estimates, comparisons and remedies. Arithmetic only."""
