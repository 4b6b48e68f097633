"""What the recipes are made of: the model, the processor, the photographs."""
