"""The costs' room: Graph + Device -> Costs. In the order of reading:

    per_element   FLOPs of what treats elements one by one
    flops         a call -> its arithmetic
    traffic       a call -> the bytes it moves
    classes       a call -> the class of its work, which has a rate of its own
    analytic      all of these -> the seconds and joules of every op on one board
    streams       the same for ops that read their parameters in tiles

What a call reads and makes, and the memory that an op needs, is in `poet.calls`.
"""
