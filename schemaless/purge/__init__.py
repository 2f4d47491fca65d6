"""Overwrite what a server's files still hold after an erasure, and search the files byte by byte."""
