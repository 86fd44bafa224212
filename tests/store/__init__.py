"""The store clients through the programs, against other people's servers."""
