"""Where the job's input comes from: readers of the supported formats, and the synthetic data set."""
