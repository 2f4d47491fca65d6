"""The command line: ``main.py`` and one file per noun."""
