"""The planner's room: Graph + Costs + Budget -> Solution, and bounds that hold for any schedule."""
