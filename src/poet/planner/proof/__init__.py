"""What is proven: floors, certified bounds, branch and bound."""
