"""Loops that torch has no kernel for, compiled by Numba: long sums, normal values, and their threads."""
