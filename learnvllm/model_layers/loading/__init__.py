"""Finding a model and reading it: names and files in, a directory of config, tokenizer and safetensors out."""
