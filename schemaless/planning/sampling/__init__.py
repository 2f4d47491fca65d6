"""Sampling a datastore: estimates of cells and sizes, codec trials on sampled cells, and codec advice."""
