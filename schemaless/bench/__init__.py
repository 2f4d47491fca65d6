"""Benchmarks serializers and compressors on a corpus of documents."""
