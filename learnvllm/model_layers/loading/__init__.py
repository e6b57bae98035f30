"""Finding a model and reading it: a name in, a directory of config, tokenizer and safetensors out."""
