"""Prints a survey of the architectures whose names contain one of the arguments."""

import sys

from tests.support.architectures.verdict import survey

survey(*sys.argv[1:])
