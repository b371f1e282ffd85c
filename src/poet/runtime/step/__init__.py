"""One step under a plan: a tape of calls on a machine that counts bytes."""
