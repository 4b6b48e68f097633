"""A report for people: Markdown, one HTML page, SVG pictures, plain text."""
