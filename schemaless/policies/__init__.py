"""What the catalog says about keeping cells: retention policies of columns, and legal holds of rows."""
