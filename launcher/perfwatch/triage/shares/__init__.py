"""Where the time goes: shares of samples by kind of work, of data, saves, compilers and other work beside training."""
