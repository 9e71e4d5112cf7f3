"""`python -m unmask`."""

from unmask.cli.app import main

main()
