"""Profiling: real costs of a captured step, measured on the machine it will run on.

`measure` runs the step as the runtime does, everything kept in RAM, and times each op where it
stands: between the same neighbours, with the same caches and fresh memory as in training
(`laps`). What kernels allocate for themselves is found out call by call (`scratch`). The store is
timed alone and beside the running step (`store_speed`), the machine's own rates with probes
(`rates`), energy with a counter where there is one (`power`).
"""
