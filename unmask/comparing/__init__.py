"""Many runs on the same text: which recipe is better, and which numbers of a recipe are."""
