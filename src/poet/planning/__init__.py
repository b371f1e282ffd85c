"""Planning: a question in words becomes values, the values an answer."""
