"""The service: plans over HTTP, a page for them, and the client of both."""
