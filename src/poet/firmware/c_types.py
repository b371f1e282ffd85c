"""Element types: what they are called in C, and their bytes."""

C_TYPES = {
    "float32": "float", "float64": "double", "int64": "int64_t", "int32": "int32_t",
    "bool": "uint8_t", "uint8": "uint8_t",
}  # fmt: skip
ITEM_BYTES = {"float32": 4, "float64": 8, "int64": 8, "int32": 4, "bool": 1, "uint8": 1}
