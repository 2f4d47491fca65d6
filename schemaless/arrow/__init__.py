"""Cells as Arrow record batches. pyarrow, of the ``[export]`` extra, is imported on first use."""
