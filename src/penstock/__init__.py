"""Penstock: you handle messages one at a time, Penstock moves them in batches, all the way."""

from importlib.metadata import version

__version__ = version("penstock")
