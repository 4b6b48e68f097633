"""A report for people: Markdown, one HTML page, SVG pictures, text for a terminal.

Nothing here decides anything: every number and name comes from `bisection.report`.
"""
