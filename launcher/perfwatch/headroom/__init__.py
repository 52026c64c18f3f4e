"""Where a step's time goes against what the card can do, and the levers that would bring most, each with evidence of this run."""
