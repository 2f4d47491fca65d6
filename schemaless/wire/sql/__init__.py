"""SQL building blocks, and statements about servers and sessions."""
