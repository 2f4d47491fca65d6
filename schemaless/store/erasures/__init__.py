"""Erasing cells: the ledger in the catalog, and the transactions that replace bodies with tombstones."""
