"""Where the job's input comes from: tables in many formats, and the synthetic data set."""
