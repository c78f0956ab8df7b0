"""A target's model shared by several processes, its ranks, of which rank 0 decides everything."""
