"""MySQL protocol and connections: driver, sessions, pools, URLs, error mapping. Knows servers, not datastores."""
