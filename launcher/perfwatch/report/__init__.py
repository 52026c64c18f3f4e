"""Views of a verdict: nothing is computed here and nothing is shown that the verdict does not hold."""
