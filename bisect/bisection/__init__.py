"""The bisection: commits, criteria, search, attribution and report.

Pure: nothing here does I/O, except the packages under ``adapters``.
"""
