"""The values that rooms hand on, and their file formats. They know no room above them."""
