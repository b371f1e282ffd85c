"""The card: what lies on it, and what a new one holds."""
