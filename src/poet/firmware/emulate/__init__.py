"""Firmware, run on an emulated board and compared with PyTorch."""
