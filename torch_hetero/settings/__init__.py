"""What a user may set and read: options and counters."""
