"""The two public data sets of the DARE paper from their original files: filters, labels, windows, splits.

DARE's appendix A and section 4.1.1 say what is done; "mainly following" KAR (arXiv:2306.10933), whose public
preprocessing has the thresholds. What neither says is an option here. docs/how-to/datasets.md has the list.
"""
