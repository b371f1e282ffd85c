"""A folder of C, run on an emulated board (`emulation`) and beside PyTorch (`comparison`)."""
