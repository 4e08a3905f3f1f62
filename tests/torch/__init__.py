"""PyTorch's side: the ATen frontend, the Dynamo backend, and torch_migraphx's names."""
