"""Who runs next? Pure decisions in `scheduler.py`; `dispatcher.py` is the loop that acts."""
