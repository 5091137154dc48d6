"""The reproduction of the paper: the runs behind each figure and table, how they are run, and what they show."""
