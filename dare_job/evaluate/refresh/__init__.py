"""``dare-job lab refresh``: which texts to write again when there is no budget for all."""
