"""The search for schedules: a portfolio of strategies around one incumbent."""
