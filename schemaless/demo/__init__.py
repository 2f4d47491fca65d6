"""The demo's steps."""
