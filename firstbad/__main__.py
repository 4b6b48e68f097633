"""`python -m firstbad` is `firstbad`."""

from firstbad.command_line import main

main()
