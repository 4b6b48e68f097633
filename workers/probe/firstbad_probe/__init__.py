"""The probe: runs a training script and writes down what it used.

It lives inside the training job's own environment: standard library and torch
alone, Python 3.10 and torch 2.6 or later. Megatron is never imported from
here, only watched through import callbacks and attributes, so that one probe
serves every commit of a history. Nothing of firstbad is imported; what is
found out is handed over as `rank-<R>.json` and `config.json`.
"""
