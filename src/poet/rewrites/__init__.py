"""Graph -> Graph: ops joined, merged for planning, fused with their updates."""
