"""The smallest run of each extra, for tools/check_extras.py: each program gets the URL of an empty datastore."""
