"""What lasts from step to step, and how it is saved and loaded."""
