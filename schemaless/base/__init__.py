"""Keys, numbers, events and interruptions: what every package may use."""
