"""Forward passes of the target model: cache, tree attention, masks, CUDA graphs."""
