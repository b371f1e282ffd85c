"""The card: its `image`, the `initial` contents of a new one, and `safetensors` files for both."""
