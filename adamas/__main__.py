"""`python -m adamas`."""

from adamas.cli import main

main()
