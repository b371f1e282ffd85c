"""What an op's calls mean: sizes, operands, workspace, loops over tiles."""
