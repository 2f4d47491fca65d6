"""What a server's files still hold after an erasure: overwrite it, and search the files byte by byte."""
