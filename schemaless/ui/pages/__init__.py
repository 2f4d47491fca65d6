"""Charts, and the report pages that contain them."""
