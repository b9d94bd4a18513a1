"""Worker processes: prefill, decode and sample. See `port.py` for what the other stages may use."""
