"""Regressions and slow-downs made by hand in real code, to see what attribution says of them."""
