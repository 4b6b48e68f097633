"""One module a recipe; each has config() -> ConfigContainer."""
