"""The SQL database: the one truth of bisections, trials, measurements and tokens.

Nothing here decides; rows are read, and written under the rules that make a crash
at any point harmless: conditional updates, fences, append-only measurements.
"""
