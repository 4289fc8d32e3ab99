"""What lossy verification costs: distances of texts from strict ones, facts that change, bounds of both."""
