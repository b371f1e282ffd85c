"""The referee: replays any plan and says what it really does. It trusts nobody."""
