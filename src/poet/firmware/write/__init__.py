"""Addresses -> C: kernels, source, the folder that `make` builds."""
