"""Cells as Arrow record batches. pyarrow, from the ``[export]`` extra, is imported on first use."""
