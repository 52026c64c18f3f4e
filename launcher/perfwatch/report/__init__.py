"""Views of a verdict and of the recording that it was made from. No cause is found here: that is triage."""
