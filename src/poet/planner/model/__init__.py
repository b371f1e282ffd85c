"""The planner's model: docs/formulation.md as a sparse mixed-integer program."""
