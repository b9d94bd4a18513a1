"""Who do we compare with? Each peer lives under `.build/`, and runs inside a `with` block."""
