"""Erasures as an operation: jobs, copies on other servers, archives, verification, receipts and replay."""
