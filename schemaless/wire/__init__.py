"""The MySQL protocol: drivers, sessions, pools, URLs and error mapping. Knows servers, but no datastore."""
