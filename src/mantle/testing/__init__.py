"""The test kit that Mantle ships: scripted models, a simulated clock, an in-process server."""
