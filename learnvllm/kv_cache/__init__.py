"""Day 4 · KV cache: a pool of fixed-size blocks, shared by content and handed out on demand.

`KVCacheManager` is the door; behind it one manager per cache group decides which blocks a request keeps, and
one `BlockPool` owns them all. Everything here is bookkeeping on the host and imports no torch: the tensors
themselves belong to the worker. Upstream namesake: vllm/v1/core/. Paper: Kwon et al. 2023, PagedAttention
(arXiv:2309.06180).
"""
