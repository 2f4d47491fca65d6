"""The store: what applications use."""
