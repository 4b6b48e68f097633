"""A dry run: the job's own training loop on fake tensors in a fake world, at full size.

Bytes are counted as in any trial of the CPU platform; no number is computed. What is
patched is named and counted, what is not modelled is listed in `limits`.
"""
