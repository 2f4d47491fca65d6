"""Terminal output, pages and charts."""
