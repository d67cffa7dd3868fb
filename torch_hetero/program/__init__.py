"""Models as programs that are known ahead of time: made, saved, called, served, run in stages."""
