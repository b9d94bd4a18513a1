"""Who runs next? Pure decisions in `scheduler.py`; the loop that performs them in `dispatcher.py`."""
