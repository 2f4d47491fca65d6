"""Documents of cold cells: files outside the database, which shards list."""
