"""MySQL protocol and connections: driver, sessions, pools, URLs, error mapping; nothing about datastores' contents."""
