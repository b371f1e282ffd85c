"""The costs' room: Graph + Device -> Costs.

`sizes` looks up what a call reads and writes, `flops` and `traffic` count its arithmetic and its
bytes, `workspace` the memory an op needs beside its inputs and outputs, and `analytic` turns all of
it into the seconds and joules of one board.
"""
