"""Model directories to and from the layouts of FastDeploy, Hugging Face and llama.cpp."""
