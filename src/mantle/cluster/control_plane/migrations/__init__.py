"""How the control plane's tables came to be, step by step; run by `migrate` at every start."""
