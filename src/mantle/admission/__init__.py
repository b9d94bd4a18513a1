"""May this request enter, for whom, and in which lane?"""
