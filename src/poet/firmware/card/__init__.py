"""The card: its `sectors`, `commits` and `layout`, the `image` of all, the `initial` contents of a
new one, and `safetensors` files."""
