"""Tiering: documents of old cells in files on cheap storage, and back."""
