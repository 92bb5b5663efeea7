"""Reproduces tables of papers with one command, and shows the numbers next to the published ones."""

from adamas.reproduce.results import Results
from adamas.reproduce.runner import Progress, reproduce
from adamas.reproduce.table import Cell, Column, Row, Table, find_tables, load_table

__all__ = ["Cell", "Column", "Progress", "Results", "Row", "Table", "find_tables", "load_table", "reproduce"]
