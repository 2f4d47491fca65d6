"""What is printed: words, tables, progress, and files written whole."""
