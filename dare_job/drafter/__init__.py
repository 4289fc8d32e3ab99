"""A small draft model of one target, distilled on what the target wrote: ``dare-job train-drafter``."""
