"""Named benchmarks. Each prints one table of ratios: ours, a peer, a limit, in one run."""
