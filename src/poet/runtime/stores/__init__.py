"""Page stores: a file or host memory, checked when pages come back."""
