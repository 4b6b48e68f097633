"""`firstbad run`: a bisection of the repository one stands in, in one process, without server and broker.

The search, the ledger and the trials are the workers' own: this room only makes a profile of a command
line (`question`), reads the repository (`checkout`) and runs the workers as threads (`engine`).
"""
