"""What can be said of a layer without running it, or by looking at what it did."""
