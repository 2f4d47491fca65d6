"""The only room that talks to MySQL servers."""
