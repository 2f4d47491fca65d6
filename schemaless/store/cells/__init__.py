"""Cells: written once, read by key, with the codecs and dictionaries of their columns."""
