"""The catalog's rules on keeping cells: retention policies of columns, and legal holds of rows."""
