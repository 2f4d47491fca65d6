"""What is done to a datastore as a whole: creating it, its servers, its tables, loading and dumping."""
