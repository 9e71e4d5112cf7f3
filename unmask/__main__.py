"""`python -m unmask`."""

from unmask.commands.cli.app import main

main()
