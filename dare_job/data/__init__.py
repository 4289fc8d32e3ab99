"""Where the job's input comes from: tables in many formats, data sets of the papers, the synthetic one."""
