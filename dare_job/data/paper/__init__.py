"""Prepares the two public data sets of the DARE paper from their original files: filters, labels, splits.

The steps follow appendix A and section 4.1.1 of DARE, and the thresholds the public preprocessing of KAR
(arXiv:2306.10933). Everything that neither specifies is an option; see docs/how-to/datasets.md.
"""
