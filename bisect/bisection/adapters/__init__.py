"""The bisection's doors to the outside: database, queue, git."""
