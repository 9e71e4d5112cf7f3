"""`python -m unmask`."""

from unmask.commands.cli import main

main()
