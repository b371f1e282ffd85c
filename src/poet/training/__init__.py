"""Training: capture, plan and run, joined in `Trainer` and `wrap`."""
