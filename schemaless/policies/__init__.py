"""The catalog's rules about what is kept: retention policies for columns, and legal holds on rows."""
