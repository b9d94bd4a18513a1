"""Between tenants in one lane: who is next? One port, one module an answer."""
