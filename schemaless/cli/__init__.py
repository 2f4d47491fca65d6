"""The command line: ``main.py``, and one or more files per command."""
