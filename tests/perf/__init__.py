"""Timings of hetero as ratios to eager CPU, measured in the same run. They never decide a test."""
