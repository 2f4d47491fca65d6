"""Statement building blocks, and the statements that every session sends."""
