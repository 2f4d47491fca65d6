"""How big will it get."""
